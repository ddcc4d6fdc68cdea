#!/bin/bash
# Everything that reads the code without running it.
source "${BASH_SOURCE[0]%/*}/lib.sh"
cd "$repo"

deny_version=0.20.2

# Built in its own folder, quickly rather than for speed: it runs for seconds.
install_deny() {
  say "building cargo-deny $deny_version (log: $cache/logs/cargo-deny.log)"
  CARGO_TARGET_DIR=$1/target CARGO_PROFILE_DEV_DEBUG=false logged cargo-deny nice -n 5 \
    cargo install --locked --debug --root "$1" "cargo-deny@$deny_version"
  rm -rf "$1/target"
}

"$repo/hack/packages.sh" build
"$repo/hack/packages.sh" lint

say "lint: cargo fmt --check"
cargo fmt --all --check || fail "formatting differs: run cargo fmt --all"

say "lint: shellcheck"
mapfile -t scripts < <(git ls-files | while read -r file; do
  if [ -f "$file" ] && head -n1 "$file" | grep -qE '^#!.*sh$|^# Shared by the scripts'; then echo "$file"; fi
done)
shellcheck --external-sources --source-path=SCRIPTDIR "${scripts[@]}"

say "lint: clippy, all targets, warnings are errors"
cargo clippy --locked --quiet --workspace --all-targets -- -D warnings

deny=$cache/tools/cargo-deny-$(key "$deny_version" "$(rustc --version)")
once "$deny" install_deny
say "lint: cargo-deny, licences, bans and sources (advisories are left out: their database comes from no package registry)"
"$deny/bin/cargo-deny" --log-level error --workspace --locked check bans licenses sources
say "lint: generated files"
cargo run --locked --quiet --package postgres-operator --bin bundle -- check || fail "generated files differ: run make generate and commit"
say "lint: passed"
