#!/bin/bash
# Run tests with the names of images and cluster in their environment.
# usage: test.sh unit | test.sh FILTER...   a filter is a ring or a test of the harness: ring5::scale
source "${BASH_SOURCE[0]%/*}/lib.sh"
cd "$repo"

case ${1:?usage: test.sh unit|FILTER...} in
  unit)
    "$repo/hack/packages.sh" build
    say "unit tests: operator, operator-core"
    cargo test --locked --quiet --package operator-core --package postgres-operator
    say "unit tests passed"
    exit 0
    ;;
  done)
    say "all tests passed"
    exit 0
    ;;
esac

set -a
# shellcheck source=/dev/null
source "$cache/images.env"
set +a
# An error of the harness says what it waited for; where in the harness helps nobody.
export RUST_LIB_BACKTRACE=0

say "harness: compiling"
cargo test --locked --quiet --package e2e --test it --no-run
# A filter that names no test would pass without having looked at anything.
for filter; do
  number=$(cargo test --locked --quiet --package e2e --test it -- --list "$filter" | grep -c ': test$' || true)
  ((number > 0)) || fail "no test of the harness matches $filter; cargo test --package e2e --test it -- --list names them"
  say "harness: $number tests match $filter"
done
cargo test --locked --quiet --package e2e --test it -- --nocapture "$@"
say "harness: $* passed"
