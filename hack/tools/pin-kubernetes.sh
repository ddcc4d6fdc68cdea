#!/bin/bash
# Pin a Kubernetes version: write hack/tools/kubernetes-VERSION/go.mod and go.sum.
# usage: pin-kubernetes.sh 1.36.3
#
# k8s.io/kubernetes requires its staging modules at v0.0.0 and replaces them by
# folders that the published module doesn't hold. Their published counterparts
# carry the same minor and patch number (1.36.3 -> v0.36.3), so the list of
# replaces is computed from the module's own go.mod. The result is committed:
# a build then depends on nothing but the hashes in go.sum.
source "${BASH_SOURCE[0]%/*}/../lib.sh"

version=${1:?usage: pin-kubernetes.sh VERSION, for example 1.36.3}
export GOFLAGS=-buildvcs=false GOTOOLCHAIN=local GOCACHE=$cache/go/build GOMODCACHE=$cache/go/mod
folder=$repo/hack/tools/kubernetes-$version
mkdir -p "$folder"
cd "$folder"
rm -f go.mod go.sum
go mod init "local/kubernetes-$version"

say "reading go.mod of k8s.io/kubernetes v$version"
upstream=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
awk -v staging="v0.${version#*.}" '$2 == "v0.0.0" { print $1 "=" $1 "@" staging }' "$upstream" |
  sort -u | sed 's/^/-replace=/' | xargs go mod edit "-require=k8s.io/kubernetes@v$version"

say "resolving the programs' modules"
go get -tool k8s.io/kubernetes/cmd/{kubeadm,kubelet,kubectl,kube-apiserver,kube-controller-manager,kube-scheduler,kube-proxy}@"v$version"
say "pinned in $folder"
