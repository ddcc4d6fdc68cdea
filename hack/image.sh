#!/bin/bash
# Build the operator's image: one static binary, nothing else. Push it to the
# registry beside the nodes, and write the name the nodes pull it by to
# operator-image in the target folder. The tag is the hash of the binary: same code, same name.
source "${BASH_SOURCE[0]%/*}/lib.sh"
cd "$repo"

"$repo/hack/packages.sh" build
command -v cargo >/dev/null || fail "Rust is needed to build the operator: install it (https://rustup.rs) and call this again"
say "compiling the operator, optimised and static (log: $cache/logs/operator-build.log)"
RUSTFLAGS="-C target-feature=+crt-static" logged operator-build cargo build --locked --release \
  --target x86_64-unknown-linux-gnu --package postgres-operator --bin postgres-operator
program=$target/x86_64-unknown-linux-gnu/release/postgres-operator
! readelf --program-headers "$program" | grep -q INTERP || fail "$program is not static: it asks for a dynamic loader"

tag=$(sha256sum "$program" | cut -c1-12)
image=$registry/postgres-operator:$tag
"$repo/hack/engine.sh"
if ! docker image inspect "$image" >/dev/null 2>&1; then
  context=$(mktemp -d "$cache/context.XXXXXX")
  trap 'rm -rf "$context"' EXIT
  cp "$program" "$context/"
  cat >"$context/Dockerfile" <<-'END'
	FROM scratch
	ENV PATH=/usr/local/bin
	COPY postgres-operator /usr/local/bin/postgres-operator
	USER 65532:65532
	ENTRYPOINT ["/usr/local/bin/postgres-operator"]
	END
  logged image-operator docker_build --tag "$image" "$context"
fi
"$repo/hack/publish.sh" "$image"

echo "${image/#$registry/$registry_in_cluster}" >"$target/operator-image"
bytes=$(docker image inspect --format '{{.Size}}' "$image")
say "operator image $(<"$target/operator-image"): $((bytes / 1000000)).$((bytes / 100000 % 10)) MB"
((bytes <= 15000000)) || say "WARNING: the operator image is larger than the 15 MB it promises"
