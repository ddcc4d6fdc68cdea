#!/bin/bash
# Put images of the engine into containerd's store of a node image, so that a
# node starts without pulling anything. They are pinned: kubelet never removes them.
# usage: preload.sh STAGE RESULT INPUTS IMAGE=[NAME IN THE NODE]...
source "${BASH_SOURCE[0]%/*}/lib.sh"

stage=$1 result=$2 inputs=$3
shift 3
container=$(docker run --detach --entrypoint sleep "$stage" infinity)
trap 'docker rm --force --volumes "$container"' EXIT
ctr() { docker exec --interactive "$container" ctr -n k8s.io "$@"; }

docker exec --detach "$container" containerd
wait_for 20 "containerd in the stage" ctr version
docker save "${@%%=*}" | ctr images import --all-platforms --no-unpack -
for pair; do
  image=docker.io/${pair%%=*} name=${pair#*=}
  ctr images label "$image" io.cri-containerd.pinned=pinned
  if [ -n "$name" ]; then
    ctr images tag "$image" "$name"
    ctr images label "$name" io.cri-containerd.pinned=pinned
  fi
done
ctr images ls -q
docker exec "$container" bash -c '
  pkill -x containerd
  while pgrep -x containerd; do sleep 0.1; done
  rm -rf /run/containerd /tmp/*'
docker commit --change "LABEL inputs=$inputs" --change 'CMD []' \
  --change 'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]' "$container" "$result"
