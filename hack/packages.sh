#!/bin/bash
# Install the Debian packages of a group that are missing: the one list of them.
# usage: packages.sh engine|images|lint|build
source "${BASH_SOURCE[0]%/*}/lib.sh"

case ${1-} in
  engine) packages=(docker.io iptables jq) ;;
  images) packages=(debootstrap busybox-static gcc libc6-dev jq) ;;
  lint) packages=(shellcheck) ;;
  build) packages=(gcc g++ libc6-dev make) ;;
  *) fail "usage: packages.sh engine|images|lint|build" ;;
esac

# On another system the commands themselves will say what is missing.
command -v dpkg-query >/dev/null || exit 0

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -Wf '${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
done
((${#missing[@]})) || exit 0

install="apt-get install --no-install-recommends ${missing[*]}"
((EUID == 0)) || fail "please install what is missing and call this again: sudo $install"
say "changing this machine: $install"
export DEBIAN_FRONTEND=noninteractive
logged apt-update apt-get update
# shellcheck disable=SC2086
logged "apt-install-$1" $install -y -q
