#!/bin/bash
# Build Go tools from the versions pinned in hack/tools/*/go.mod.
# usage: tools.sh TOOL...   prints one line per tool: the folder with its programs
#
# Go's own caches (more than 10 GB) live in the project's cache folder and are
# removed when everything asked for is built; KEEP_GO_CACHE=1 keeps them.
source "${BASH_SOURCE[0]%/*}/lib.sh"

export CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOTOOLCHAIN=local
export GOCACHE=$cache/go/build GOMODCACHE=$cache/go/mod

# Programs of each tool, as package paths.
programs() {
  case $1 in
    coredns) echo github.com/coredns/coredns ;;
    crictl) echo sigs.k8s.io/cri-tools/cmd/crictl ;;
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kind) echo sigs.k8s.io/kind ;;
    local-path-provisioner) echo github.com/rancher/local-path-provisioner ;;
    podroutes) echo local/podroutes ;;
    kubernetes-*)
      printf 'k8s.io/kubernetes/cmd/%s\n' kubeadm kubelet kubectl kube-apiserver \
        kube-controller-manager kube-scheduler kube-proxy
      ;;
    *) fail "no tool named $1; see ${BASH_SOURCE[0]}" ;;
  esac
}

# Kubernetes programs answer with the version they were built from; kubeadm
# refuses to work without it.
link_flags() {
  local version=${1#kubernetes-} package flags="-s -w"
  if [ "$version" != "$1" ]; then
    local major=${version%%.*} minor=${version#*.}
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $package.gitVersion=v$version -X $package.gitMajor=$major -X $package.gitMinor=${minor%%.*}"
      flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=$(printf '0%.0s' {1..40})"
    done
  fi
  echo "$flags"
}

build() {
  local tool=$1 source=$2 out=$3
  say "building $tool (log: $cache/logs/tool-$tool.log)"
  local packages
  mapfile -t packages < <(programs "$tool")
  cd "$source"
  logged "tool-$tool" nice -n 5 go build -trimpath -ldflags "$(link_flags "$tool")" -o "$out/" "${packages[@]}"
  # etcd's server package builds a program named after its module version.
  if [ -e "$out/v3" ]; then mv "$out/v3" "$out/etcd"; fi
  if [ -e "$out/server" ]; then mv "$out/server" "$out/etcd"; fi
}

command -v go >/dev/null || fail "Go is needed to build the cluster's tools: install Go 1.26 or newer and call this again"

built=
for tool; do
  source=hack/tools/$tool
  [ "$tool" != podroutes ] || source=kind/podroutes
  [ -f "$repo/$source/go.mod" ] || fail "$source/go.mod is missing; for a Kubernetes version make it with hack/tools/pin-kubernetes.sh"
  folder=$cache/tools/$tool-$(key "$source" "$(go env GOVERSION)" "$(programs "$tool")" "$(link_flags "$tool")")
  if [ ! -d "$folder" ]; then
    (once "$folder" build "$tool" "$repo/$source")
    built=1
  fi
  # kind and kubectl are for people and tests too.
  for program in kind kubectl; do
    if [ -x "$folder/$program" ]; then ln -sfn "$folder/$program" "$cache/bin/$program"; fi
  done
  echo "$folder"
done

if [ -n "$built" ] && [ -z "${KEEP_GO_CACHE:-}" ]; then
  say "removing Go's build and module caches"
  go clean -cache -modcache
fi
