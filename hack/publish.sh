#!/bin/bash
# Push images of the engine to the registry beside the nodes, starting it if
# needed, and pull them on every node of a running cluster.
# usage: publish.sh [localhost:5000/NAME:TAG...]   without names: the PostgreSQL images that are there
source "${BASH_SOURCE[0]%/*}/lib.sh"

name=registry.local
listening() { docker exec "$name" bash -c 'exec 3<>/dev/tcp/127.0.0.1/5000'; }

if [ "$(docker inspect --format '{{.State.Running}}' "$name" 2>/dev/null)" != true ]; then
  "$repo/hack/images.sh" registry
  image=$(sed -n 's/^REGISTRY_IMAGE=//p' "$cache/images.env")
  # kind takes a network of this name as it finds it.
  docker network inspect kind >/dev/null 2>&1 || docker network create kind >/dev/null
  docker rm --force "$name" >/dev/null 2>&1 || true
  say "starting the registry as $name, on this machine $registry"
  docker run --detach --name "$name" --hostname "$name" --network kind --publish "127.0.0.1:${registry#*:}:5000" \
    --volume postgres-operator-registry:/var/lib/registry "$image" >/dev/null
  wait_for 30 "the registry" listening
fi

if (($# == 0)); then
  mapfile -t images < <(sed -n "s/^POSTGRES_IMAGE_[0-9]*=//p" "$cache/images.env")
  set -- "${images[@]}"
fi
say "pushing ${*/#$registry\//} to the registry"
for image; do
  docker push --quiet "$image" >/dev/null
done

pull() {
  local image
  for image; do
    docker exec "$node" crictl pull --pull-timeout 120s "${image/#$registry/$registry_in_cluster}" >/dev/null
  done
}

pulls=()
for node in $(docker ps --quiet --filter "label=io.x-k8s.kind.cluster=$CLUSTER" --filter status=running); do
  pull "$@" &
  pulls+=($!)
done
for process in "${pulls[@]}"; do
  wait "$process" || fail "a node could not pull $* (is it paused? see docs/cluster.md)"
done
