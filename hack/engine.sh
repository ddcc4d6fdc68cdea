#!/bin/bash
# Have a Docker engine that answers: use the one there is, or (root, Debian)
# install and start one. Says what it changes on the machine.
source "${BASH_SOURCE[0]%/*}/lib.sh"

answers() { timeout 10 docker info >/dev/null 2>&1; }

! answers || exit 0

if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
  fail "no Docker engine answers, and starting one here takes root on Debian: start Docker, then call this again"
fi

exec {lock}>"$cache/engine.lock"
flock "$lock"
! answers || exit 0

"$repo/hack/packages.sh" engine

# A running systemd starts the engine as it was packaged.
if [ -d /run/systemd/system ]; then
  say "changing this machine: systemctl start docker"
  logged engine-start systemctl start docker
  wait_for 60 "the engine" answers
  exit 0
fi

# An engine that was killed leaves its pid files; a number that now belongs to
# another program would be taken for the old one.
forget() {
  local file=$1 program=$2 pid
  pid=$(cat "$file" 2>/dev/null) || return 0
  if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$program" ]; then
    say "removing $file: no $program runs under it"
    rm -f "$file"
  fi
}
forget /var/run/docker.pid dockerd
forget /var/run/docker/containerd/containerd.pid containerd
if ! pgrep -x containerd >/dev/null; then rm -f /run/containerd/containerd.sock; fi

arguments=(--log-opt max-size=20m)
capabilities=$(awk '/^CapBnd:/ { print $2 }' /proc/self/status)
if ! ((0x$capabilities >> 24 & 1)); then
  runtime=$cache/bin/runc-without-sys-resource
  say "root here lacks CAP_SYS_RESOURCE: the engine gets the OCI runtime $runtime"
  install -D "$repo/kind/runc-without-sys-resource" "$runtime"
  arguments+=(--add-runtime "without-sys-resource=$runtime" --default-runtime without-sys-resource)
fi

# Three nodes with a kubelet each watch more files than the kernel's default allows.
for setting in max_user_instances=1024 max_user_watches=1048576; do
  file=/proc/sys/fs/inotify/${setting%=*}
  if (($(<"$file") < ${setting#*=})); then
    say "changing this machine: fs.inotify.$setting"
    echo "${setting#*=}" >"$file"
  fi
done

say "starting dockerd ${arguments[*]} (log: $cache/logs/dockerd.log)"
mkdir -p "$cache/logs"
(
  # The engine outlives its callers: it must not hold their locks and pipes.
  for descriptor in /proc/self/fd/*; do
    number=${descriptor##*/}
    if ((number > 2 && number != 255)); then eval "exec $number>&-"; fi
  done
  exec setsid dockerd "${arguments[@]}" >"$cache/logs/dockerd.log" 2>&1 </dev/null
) &
wait_for 60 "the engine" answers
say "engine $(docker version --format '{{.Server.Version}}') answers"
