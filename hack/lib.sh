# Shared by the scripts of hack/: where things are, how progress is said, how results are cached.
# shellcheck shell=bash
set -euo pipefail

HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export HOME
repo=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/postgres-operator
export KUBERNETES_VERSION=${KUBERNETES_VERSION:-1.36.3}
export CLUSTER=${CLUSTER:-postgres-operator}
export KUBECONFIG=$cache/kubeconfig-$CLUSTER # never the user's own
export PATH=$cache/bin:$PATH                   # kind, kubectl
# The registry as this machine and as the nodes name it.
# shellcheck disable=SC2034
registry=localhost:5000 registry_in_cluster=registry.local:5000
# Where cargo builds; in it operator-image, the name the nodes pull the operator by.
# shellcheck disable=SC2034
target=${CARGO_TARGET_DIR:-$repo/target}
mkdir -p "$cache/bin"

# All scripts of one `make` share one clock.
export STARTED=${STARTED:-$EPOCHSECONDS}

# say TEXT: one line of progress with the time since the start.
say() {
  local s=$((EPOCHSECONDS - STARTED))
  printf '[%3d:%02d] %s\n' $((s / 60)) $((s % 60)) "$*" >&2
}

# fail TEXT: what went wrong and what to do about it; ends the script.
fail() {
  say "FAILED: $*"
  exit 1
}

# wait_for SECONDS WHAT COMMAND...: repeat COMMAND until it succeeds.
wait_for() {
  local limit=$((EPOCHSECONDS + $1)) what=$2
  shift 2
  say "waiting for $what"
  until "$@" >/dev/null 2>&1; do
    ((EPOCHSECONDS < limit)) || fail "$what: not within the time limit (last try: $*)"
    sleep 0.5
  done
}

# key WORD...: a short hash of the words; a word that names a file or folder of
# the repository stands for its contents.
key() {
  local word
  for word; do
    echo "$word"
    if [ -n "$word" ] && [ -e "$repo/$word" ]; then
      (cd "$repo" && find "$word" -type f -print0 | sort -z | xargs -0r sha256sum)
    fi
  done | sha256sum | cut -c1-12
}

# once FOLDER COMMAND...: make FOLDER by running COMMAND with a temporary folder
# as its last argument. The rename at the end makes a partial result impossible
# to mistake for a complete one; the lock lets two callers share one result.
once() {
  local _folder=$1 _lock
  shift
  [ ! -d "$_folder" ] || return 0
  mkdir -p "${_folder%/*}"
  exec {_lock}>"$_folder.lock"
  flock "$_lock"
  if [ ! -d "$_folder" ]; then
    rm -rf "$_folder.part"
    mkdir "$_folder.part"
    "$@" "$_folder.part" {_lock}>&-
    mv -T "$_folder.part" "$_folder"
  fi
  exec {_lock}>&-
  rm -f "$_folder.lock"
}

# The builder that every engine has; newer clients call it deprecated.
docker_build() { DOCKER_BUILDKIT=0 docker build --quiet "$@"; }

# logged NAME COMMAND...: the output goes to a log file; a failure shows its end.
logged() {
  local log=$cache/logs/$1.log
  shift
  mkdir -p "$cache/logs"
  "$@" >"$log" 2>&1 || {
    tail -n 25 "$log" >&2
    fail "$1 (whole log: $log)"
  }
}
