#!/bin/bash
# Have images in the local engine, each built only when its inputs changed.
# usage: images.sh all|node|registry|postgres-15|postgres-17|postgres-18...
#        records the names in the cache's images.env, for scripts and tests to read
#
# KIND_NODE_IMAGE, REGISTRY_IMAGE and POSTGRES_IMAGE_15/17/18 select published
# images instead (then also KUBE_APISERVER_IMAGE and ETCD_IMAGE).
source "${BASH_SOURCE[0]%/*}/lib.sh"

# image NAME INPUTS COMMAND...: unless the engine has NAME, made from INPUTS,
# build it from the folder that COMMAND fills (its last argument).
image() {
  local name=$1 inputs=$2 context
  shift 2
  if [ "$(docker image inspect --format '{{.Config.Labels.inputs}}' "$name" 2>/dev/null)" = "$inputs" ]; then
    return 0
  fi
  say "building image $name"
  context=$(mktemp -d "$cache/context.XXXXXX")
  "$@" "$context"
  logged "image-${name//[\/:]/-}" docker_build --label "inputs=$inputs" --tag "$name" "$context"
  rm -rf "$context"
}

from_rootfs() { # FOLDER LINES OUT
  ln "$1/rootfs.tar" "$3/rootfs.tar"
  printf 'FROM scratch\nADD rootfs.tar /\n%b' "$2" >"$3/Dockerfile"
}

from_program() { # BASE FILE TARGET OUT
  cp "$2" "$4/program"
  printf 'FROM %s\nCOPY program %s\nENTRYPOINT ["%s"]\n' "$1" "$3" "$3" >"$4/Dockerfile"
}

rootfs_image() { # NAME FOLDER LINES
  image "$1" "$(key "${2##*/}" "$3" "$(declare -f from_rootfs)")" from_rootfs "$2" "$3"
}

program_image() { # NAME BASE FILE [TARGET]
  local target=${4:-/usr/local/bin/${3##*/}} base='' inputs
  if [ "$2" != scratch ]; then base=$(docker image inspect --format '{{.Id}}' "$2"); fi
  inputs=$(key "$base" "$target" "${3%/*}" "$(declare -f from_program)")
  image "$1" "$inputs" from_program "$2" "$3" "$target"
}

# Statically linked busybox: the storage provisioner's helper pods need a shell.
fill_helper() {
  local applet
  mkdir -p "$1/root/bin" "$1/root/etc"
  mkdir -m 1777 "$1/root/tmp"
  for applet in $(busybox --list); do ln -s busybox "$1/root/bin/$applet"; done
  rm -f "$1/root/bin/busybox"
  cp "$(command -v busybox)" "$1/root/bin/busybox"
  echo 'root:x:0:0:root:/:/bin/sh' >"$1/root/etc/passwd"
  printf 'FROM scratch\nCOPY root /\nENV PATH=/bin\nCMD ["/bin/sh"]\n' >"$1/Dockerfile"
}

compile_pause() { gcc -Os -static -s -o "$1/pause" "$repo/kind/pause/pause.c"; }

# Debian's registry, taken out of its package.
unpack_registry() {
  (cd "$1" && logged registry-download apt-get download docker-registry && dpkg-deb -x docker-registry_*.deb root)
  mv "$1/root/usr/bin/docker-registry" "$1/docker-registry"
  rm -rf "$1/root" "$1"/*.deb
}

fill_registry() { # PROGRAM OUT
  cp "$1" "$repo/kind/registry/config.yml" "$2"
  cat >"$2/Dockerfile" <<-'END'
	FROM local/net:1
	COPY docker-registry /usr/local/bin/docker-registry
	COPY config.yml /etc/registry.yml
	VOLUME /var/lib/registry
	ENTRYPOINT ["/usr/local/bin/docker-registry", "serve", "/etc/registry.yml"]
	END
}

fill_node() { # KUBERNETES CRICTL OUT
  mkdir -p "$3/usr/bin" "$3/files"
  cp "$1"/{kubeadm,kubelet,kubectl} "$2/crictl" "$3/usr/bin"
  cp -r --no-preserve=ownership "$repo/kind/node/." "$3/files"
  echo "v$KUBERNETES_VERSION" >"$3/files/kind/version"
  cat >"$3/Dockerfile" <<-'END'
	FROM local/node-base:1
	ENV container=docker
	STOPSIGNAL SIGRTMIN+3
	COPY usr/bin /usr/bin/
	COPY files /
	ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
	END
}

node() {
  local node=local/kind-node:v$KUBERNETES_VERSION
  local folders kubernetes etcd crictl storage routes dns base pause images inputs
  "$repo/hack/packages.sh" images
  "$repo/hack/rootfs.sh" node >/dev/null & # needs the network more than the processor
  base=$!
  folders=$("$repo/hack/tools.sh" "kubernetes-$KUBERNETES_VERSION" etcd crictl local-path-provisioner podroutes coredns)
  { read -r kubernetes && read -r etcd && read -r crictl && read -r storage && read -r routes && read -r dns; } <<<"$folders"
  wait "$base"
  base=$("$repo/hack/rootfs.sh" node)
  pause=$cache/tools/pause-$(key kind/pause)
  once "$pause" compile_pause

  rootfs_image local/net:1 "$("$repo/hack/rootfs.sh" net)" ''
  local program
  for program in kube-apiserver kube-controller-manager kube-scheduler; do
    program_image "local/$program:v$KUBERNETES_VERSION" scratch "$kubernetes/$program"
  done
  program_image "local/kube-proxy:v$KUBERNETES_VERSION" local/net:1 "$kubernetes/kube-proxy"
  program_image local/podroutes:1 local/net:1 "$routes/podroutes"
  program_image local/etcd:1 scratch "$etcd/etcd"
  program_image local/coredns:1 scratch "$dns/coredns" /coredns
  program_image local/pause:1 scratch "$pause/pause" /pause
  program_image local/local-path-provisioner:1 scratch "$storage/local-path-provisioner"
  image local/helper:1 "$(key "$(busybox | head -n1)" "$(declare -f fill_helper)")" fill_helper
  rootfs_image local/node-base:1 "$base" ''

  images=(local/{podroutes,pause,local-path-provisioner,helper}:1=)
  local wanted name
  for wanted in $("$kubernetes/kubeadm" config images list --kubernetes-version "v$KUBERNETES_VERSION" 2>/dev/null); do
    name=${wanted##*/}
    case ${name%:*} in
      kube-*) images+=("local/$name=$wanted") ;;
      etcd | coredns) images+=("local/${name%:*}:1=$wanted") ;;
    esac
  done
  inputs=$(key "${base##*/}" "${kubernetes##*/}" "${crictl##*/}" kind/node hack/preload.sh "${images[@]}" "$(declare -f fill_node)" \
    "$(docker image inspect --format '{{.Id}}' "${images[@]%%=*}")")
  if [ "$(docker image inspect --format '{{.Config.Labels.inputs}}' "$node" 2>/dev/null)" != "$inputs" ]; then
    image local/node-stage:1 "$inputs" fill_node "$kubernetes" "$crictl"
    say "building image $node"
    logged image-kind-node "$repo/hack/preload.sh" local/node-stage:1 "$node" "$inputs" "${images[@]}"
  fi
  record KIND_NODE_IMAGE "$node"
  record KUBE_APISERVER_IMAGE "local/kube-apiserver:v$KUBERNETES_VERSION"
  record ETCD_IMAGE local/etcd:1
}

registry() {
  local folder
  folder=$cache/tools/registry-$(key "$(declare -f unpack_registry)")
  "$repo/hack/packages.sh" images
  rootfs_image local/net:1 "$("$repo/hack/rootfs.sh" net)" ''
  once "$folder" unpack_registry
  image local/registry:1 "$(key "${folder##*/}" kind/registry/config.yml "$(declare -f fill_registry)")" \
    fill_registry "$folder/docker-registry"
  record REGISTRY_IMAGE local/registry:1
}

postgres() {
  local folder version=$1
  "$repo/hack/packages.sh" images
  folder=$("$repo/hack/rootfs.sh" "postgres-$version")
  rootfs_image "$registry/postgres:$version" "$folder" "ENV LANG=C.UTF-8 PATH=/usr/lib/postgresql/$version/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nUSER 999:999\n"
  record "POSTGRES_IMAGE_$version" "$registry/postgres:$version"
  record "POSTGRES_IMAGE_${version}_IN_CLUSTER" "$registry_in_cluster/postgres:$version"
}

# record NAME IMAGE: one line of images.env.
record() {
  local file=$cache/images.env lock
  exec {lock}>"$file.lock"
  flock "$lock"
  { grep -v "^$1=" "$file" 2>/dev/null || true; echo "$1=$2"; } | sort >"$file.part"
  mv "$file.part" "$file"
  exec {lock}>&-
}

# published VARIABLE [NAME]: have the image that VARIABLE selects.
published() {
  local image=${!1}
  if ! docker image inspect "$image" >/dev/null 2>&1; then
    say "pulling $image"
    docker pull --quiet "$image" >&2
  fi
  if [ -n "${2-}" ]; then docker tag "$image" "$2"; fi
  record "$1" "${2:-$image}"
}

published_node() {
  local variable
  for variable in KIND_NODE_IMAGE KUBE_APISERVER_IMAGE ETCD_IMAGE; do
    if [ -n "${!variable-}" ]; then published "$variable"; fi
  done
  "$repo/hack/tools.sh" kind >/dev/null
  if ! command -v kubectl >/dev/null; then
    docker run --rm --entrypoint cat "$KIND_NODE_IMAGE" /usr/bin/kubectl >"$cache/bin/kubectl.part"
    chmod +x "$cache/bin/kubectl.part"
    mv "$cache/bin/kubectl.part" "$cache/bin/kubectl"
  fi
}

"$repo/hack/engine.sh"
if [ "$*" = all ]; then set -- postgres-17 registry node postgres-15 postgres-18; fi
for what; do
  selected=POSTGRES_IMAGE_${what#postgres-}
  case $what in
    node) if [ -n "${KIND_NODE_IMAGE-}" ]; then published_node; else node; fi ;;
    registry) if [ -n "${REGISTRY_IMAGE-}" ]; then published REGISTRY_IMAGE; else registry; fi ;;
    postgres-*)
      if [ -n "${!selected-}" ]; then
        published "$selected" "$registry/postgres:${what#postgres-}"
      else
        postgres "${what#postgres-}"
      fi
      ;;
    *) fail "no image named $what" ;;
  esac
done
