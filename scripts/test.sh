#!/bin/sh
# Every test, in the order in which a failure says most: formatting and lints,
# unit and property tests, fuzz targets for a bounded time, the memory model,
# whole-system tests in network namespaces, other kernels, documentation.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PATH
: "${BOLERO_RANDOM_TEST_TIME_MS:=3000}"
export BOLERO_RANDOM_TEST_TIME_MS

step() { printf '\n== %s\n' "$*"; }

step "formatting"
cargo fmt --all --check
step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings
step "unit, property, fuzz and whole-system tests"
cargo test --workspace --locked -- --test-threads=1
step "memory model (loom)"
make --no-print-directory loom
step "instructions of hot paths (valgrind, and an emulator of the driver program)"
make --no-print-directory instructions
step "the driver program on other kernels (QEMU)"
TIDEWALL=target/debug/tidewall scripts/kernels.sh load
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
step "nothing left behind"
left=$(ip netns list 2>/dev/null | grep -c '^tw-' || true)
[ "$left" = 0 ] || { echo "$left tw- namespaces were left behind"; ip netns list; exit 1; }
