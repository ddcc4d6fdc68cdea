#!/bin/bash
# Assemble the file system of an image from Debian packages (root on Debian only).
# usage: rootfs.sh node|net|postgres-15|postgres-17|postgres-18
#        prints the folder that holds rootfs.tar
source "${BASH_SOURCE[0]%/*}/lib.sh"

name=${1:?usage: rootfs.sh node|net|postgres-15|postgres-17|postgres-18}
case $name in
  node) # a kind node: systemd, containerd and what kubelet and kube-proxy call
    suite=bookworm
    packages=systemd,systemd-sysv,kmod,util-linux,mount,procps,iproute2,iptables,nftables,conntrack,ethtool
    packages+=,ca-certificates,jq,libseccomp2,e2fsprogs,containerd,runc,containernetworking-plugins,tar,bash
    packages+=,hostname,iputils-ping,curl,openssl,socat
    ;;
  net) # under kube-proxy, podroutes and the registry
    suite=bookworm
    packages=iptables,nftables,conntrack,iproute2
    ;;
  postgres-15) suite=bookworm ;;
  postgres-17) suite=trixie ;;
  postgres-18) suite=sid ;;
  *) fail "no root file system named $name" ;;
esac
version=${name#postgres-}
[ "$version" = "$name" ] || packages=postgresql-$version,postgresql-client-$version,ca-certificates

# What no container needs, and what must not be copied from the building machine.
trim() {
  (
    cd "$1"
    rm -rf var/lib/apt/lists/* var/cache/apt/* var/cache/debconf/*-old var/log/* tmp/*
    rm -rf usr/share/doc/* usr/share/man/* usr/share/info/* usr/share/locale/* usr/share/bash-completion
    rm -rf etc/machine-id var/lib/dbus/machine-id etc/hostname
    : >etc/resolv.conf
    : >etc/hosts
  )
}

# Leave systemd nothing to start but journald, containerd and kubelet.
trim_node() {
  (
    cd "$1"
    rm -rf etc/systemd/system/*.wants etc/systemd/system/*.requires
    local target unit
    for target in multi-user sysinit local-fs sockets timers graphical; do
      for unit in lib/systemd/system/"$target".target.wants/*; do
        case ${unit##*/} in
          systemd-journald.service | systemd-journald.socket | systemd-journald-dev-log.socket | dev-mqueue.mount) ;;
          *) rm -f "$unit" ;;
        esac
      done
    done
    for unit in systemd-binfmt.service proc-sys-fs-binfmt_misc.automount dev-hugepages.mount \
      sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount \
      systemd-logind.service getty.target console-getty.service getty@.service systemd-udevd.service \
      systemd-networkd.service systemd-resolved.service systemd-timesyncd.service systemd-remount-fs.service; do
      ln -sf /dev/null "etc/systemd/system/$unit"
    done
    mkdir -p etc/systemd/system/multi-user.target.wants
    ln -sf /lib/systemd/system/multi-user.target etc/systemd/system/default.target
    ln -sf /lib/systemd/system/containerd.service etc/systemd/system/multi-user.target.wants/containerd.service
    ln -sf /etc/systemd/system/kubelet.service etc/systemd/system/multi-user.target.wants/kubelet.service
  )
}

trim_net() {
  (
    cd "$1"
    rm -rf usr/share/perl* usr/lib/x86_64-linux-gnu/perl-base usr/bin/perl* var/lib/dpkg/info usr/share/zoneinfo
  )
}

# The server's own programs without Debian's cluster management around them:
# no example cluster, no self-signed key, no JIT (LLVM is 120 MB), no perl.
trim_postgres() {
  chroot "$1" groupmod -g 999 postgres
  chroot "$1" usermod -u 999 -g 999 postgres
  (
    cd "$1"
    rm -rf var/lib/postgresql/* etc/postgresql/* var/log/postgresql etc/ssl/private/* etc/ssl/certs/ssl-cert-snakeoil.pem
    rm -rf "usr/lib/postgresql/$version/lib/bitcode" "usr/lib/postgresql/$version/lib"/llvmjit*
    rm -rf usr/lib/x86_64-linux-gnu/libLLVM* usr/lib/llvm-* usr/lib/x86_64-linux-gnu/libz3*
    rm -rf usr/share/perl usr/share/perl5 usr/lib/x86_64-linux-gnu/perl usr/share/postgresql-common var/lib/dpkg/info
    find usr/bin usr/sbin -lname '*pg_wrapper' -delete
    # initdb wants an account for the user it runs as; some operators use 26.
    echo 'postgres26:x:26:26:PostgreSQL under user 26:/var/lib/postgresql:/bin/bash' >>etc/passwd
    echo 'postgres26:x:26:' >>etc/group
    mkdir -p run/postgresql
    chown -R 999:999 var/lib/postgresql run/postgresql
    chmod 3777 run/postgresql
  )
}

# Postgres gets group 999. Debian's later suites give that to lpadmin, which owns nothing here.
free_group_999() {
  local holder
  holder=$(awk -F: '$3 == 999 && $1 != "postgres" { print $1 }' "$1/etc/group")
  if [ -n "$holder" ]; then chroot "$1" groupdel "$holder"; fi
}

assemble() {
  local out=$1 mirror
  if ((EUID != 0)) || ! command -v debootstrap >/dev/null; then
    fail "assembling the $name image needs root and debootstrap (Debian); or choose a published image, see docs/cluster.md"
  fi
  # The mirror that this machine's own apt uses.
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | head -n1)
  [ -n "$mirror" ] || fail "no Debian mirror in this machine's apt sources; run apt-get update"
  say "assembling $name from Debian $suite (log: $cache/logs/rootfs-$name.log)"
  mkdir -p "$cache/debs/$suite"
  logged "rootfs-$name" debootstrap --variant=minbase --cache-dir="$cache/debs/$suite" --include="$packages" \
    "$suite" "$out/root" "$mirror"
  trim "$out/root"
  if [ "$version" != "$name" ]; then free_group_999 "$out/root"; fi
  "trim_${name%-*}" "$out/root"
  tar -C "$out/root" --numeric-owner -cf "$out/rootfs.tar" .
  rm -rf "$out/root"
}

folder=$cache/rootfs/$name-$(key "$suite" "$packages" "$(declare -f trim "trim_${name%-*}")")
once "$folder" assemble
echo "$folder"
