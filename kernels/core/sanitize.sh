#!/bin/sh
# The core's concurrency, checked by machine: every interleaving of small cases with loom, then the stress tests under
# ThreadSanitizer. loom needs nothing; ThreadSanitizer needs a nightly toolchain with its rust-src component, because
# the standard library must be instrumented too. Ends with 2 if that cannot be had, and nothing else failed.
set -eu
cd "$(dirname "$0")"

echo "==> loom"
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
    cargo test --quiet --locked --lib --no-default-features

echo "==> ThreadSanitizer"
if ! rustup component list --toolchain nightly --installed 2>/dev/null | grep -q '^rust-src' &&
    ! rustup component add --toolchain nightly rust-src &&
    ! rustup toolchain install nightly --profile minimal --component rust-src; then
    echo "ThreadSanitizer was NOT RUN: rustup toolchain install nightly --component rust-src failed" >&2
    exit 2
fi
RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/tsan" TSAN_OPTIONS="halt_on_error=1" \
    cargo +nightly test --quiet --locked --lib --no-default-features -Zbuild-std --target "$(rustc -vV | sed -n 's/^host: //p')"
