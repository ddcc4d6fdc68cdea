#!/bin/bash
# The kind cluster: one control plane, two workers, storage, a registry.
# usage: cluster.sh up|down|kubeconfig
source "${BASH_SOURCE[0]%/*}/lib.sh"

nodes() { docker ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$CLUSTER" "$@"; }

# Three nodes that say Ready.
ready() {
  [ "$(kubectl --request-timeout=5s get nodes --no-headers 2>/dev/null | awk '$2 == "Ready"' | wc -l)" = 3 ]
}

# Bring back nodes that a test killed or paused.
revive() {
  local node
  for node in $(nodes --filter status=paused); do docker unpause "$node" >/dev/null; done
  for node in $(nodes --filter status=exited); do docker start "$node" >/dev/null; done
}

# A cluster that doesn't answer counts as absent: making it anew takes half a minute.
usable() {
  local limit=$((EPOCHSECONDS + 60))
  [ "$(nodes | wc -l)" = 3 ] || return 1
  if [ ! -s "$KUBECONFIG" ]; then kind export kubeconfig --quiet --name "$CLUSTER" || return 1; fi
  ! ready || return 0
  say "waiting for the nodes of the cluster that is there (60 s at most)"
  revive
  until ready; do
    ((EPOCHSECONDS < limit)) || return 1
    sleep 1
  done
}

trust_registry() {
  local node folder=/etc/containerd/certs.d/$registry_in_cluster
  for node in $(nodes); do
    docker exec "$node" mkdir -p "$folder"
    docker exec --interactive "$node" tee "$folder/hosts.toml" <"$repo/kind/registry/hosts.toml" >/dev/null
  done
}

up() {
  local image
  "$repo/hack/engine.sh"
  "$repo/hack/tools.sh" kind >/dev/null
  "$repo/hack/images.sh" postgres-17 registry node
  image=$(sed -n 's/^KIND_NODE_IMAGE=//p' "$cache/images.env")
  if usable; then
    say "the cluster $CLUSTER is up"
    if [ "$(docker inspect --format '{{.Image}}' "$CLUSTER-control-plane")" != "$(docker image inspect --format '{{.Id}}' "$image")" ]; then
      say "note: its nodes were made from an older image; make cluster-down cluster renews them"
    fi
  else
    kind delete cluster --quiet --name "$CLUSTER"
    docker network inspect kind >/dev/null 2>&1 || docker network create kind >/dev/null
    say "creating the cluster $CLUSTER from $image, waiting for three Ready nodes"
    logged kind-create kind create cluster --name "$CLUSTER" --image "$image" --config "$repo/kind/cluster.yaml" --wait 180s
    wait_for 120 "three Ready nodes" ready
    trust_registry
    say "three nodes are Ready"
  fi
  "$repo/hack/publish.sh" "$registry/postgres:17"
  say "waiting for the pods of kube-system and storage"
  kubectl wait --for=condition=Available --timeout=120s --namespace kube-system deployment/coredns >/dev/null
  kubectl wait --for=condition=Available --timeout=120s --namespace local-path-storage deployment/local-path-provisioner >/dev/null
  say "ready: export KUBECONFIG=$KUBECONFIG"
}

down() {
  docker info >/dev/null 2>&1 || fail "no Docker engine answers, so no cluster runs"
  "$repo/hack/tools.sh" kind >/dev/null
  kind delete cluster --quiet --name "$CLUSTER"
  docker rm --force --volumes registry.local >/dev/null 2>&1 || true
  docker volume rm postgres-operator-registry >/dev/null 2>&1 || true
  say "the cluster and its registry are gone; the engine runs on, what was built stays in $cache"
}

if [ "${1-}" = kubeconfig ]; then
  echo "$KUBECONFIG"
  exit
fi
exec {lock}>"$cache/cluster-$CLUSTER.lock"
if ! flock --nonblock "$lock"; then
  say "waiting for another call of $0"
  flock "$lock"
fi
case ${1-} in
  up) up ;;
  down) down ;;
  *) fail "usage: cluster.sh up|down" ;;
esac
