#!/bin/sh
# Runs every test, the most informative failures first:
# - formatting and lints
# - unit and property tests, fuzz targets for a bounded time, and whole-system tests in
#   network namespaces
# - the memory model, and instruction counts
# - other kernels
# - documentation
# The end names the skipped tests. If nothing that a test needs is missing, as in CI, a
# skipped test fails.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PATH
: "${BOLERO_RANDOM_TEST_TIME_MS:=3000}"
export BOLERO_RANDOM_TEST_TIME_MS

# A tree that is built once gains nothing from incremental builds.
if [ -n "${CI:-}" ] || [ ! -d target ]; then
	export CARGO_INCREMENTAL=0
fi

began=$(date +%s)
# Namespaces that existed before do not belong to the tests.
namespaces() { ip netns list 2>/dev/null | sed -n 's/^\(tw-[^ ]*\).*/\1/p' | sort; }
before=$(namespaces)
step() { printf '\n== %s (after %s s)\n' "$*" $(($(date +%s) - began)); }

# Every test that skips writes a line here (lab/testing/skip).
TIDEWALL_SKIPPED=$(mktemp)
export TIDEWALL_SKIPPED
# Tests that failed once among others, and passed alone.
unsteady=$(mktemp)
at_end() {
	status=$?
	[ -z "$fetching" ] || kill -- "-$fetching" 2>/dev/null || true
	if [ -s "$unsteady" ]; then
		step "failed once, then passed twice alone: each is a defect of the test or of what it tests"
		cat "$unsteady"
	fi
	step "$(wc -l <"$TIDEWALL_SKIPPED") tests or parts of tests were skipped"
	sort "$TIDEWALL_SKIPPED"
	rm -f "$TIDEWALL_SKIPPED" "$unsteady"
	exit $status
}
fetching=
trap at_end EXIT
# Fetches the packages of other kernels while programs are built. `load` below repeats a
# fetch that failed, and prints the error.
setsid python3 -B scripts/kernels/lane.py fetch >/dev/null 2>&1 &
fetching=$!

# CAP_NET_ADMIN, NET_RAW, SYS_ADMIN, SYS_NICE, PERFMON and BPF, as root.
needed=$((1 << 12 | 1 << 13 | 1 << 21 | 1 << 23 | 1 << 38 | 1 << 39))
effective=$(sed -n 's/^CapEff:[[:space:]]*/0x/p' /proc/self/status)
if [ "$(id -u)" = 0 ] && [ $((effective & needed)) -eq $needed ]; then
	export TIDEWALL_MUST=1
fi

step "formatting"
cargo fmt --all --check
step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings
step "unit, property, fuzz and whole-system tests"
scripts/cargo-test.sh "$unsteady" --workspace --locked
step "memory model (loom)"
make --no-print-directory loom
step "instructions of hot paths (valgrind, and an emulator of the driver program)"
make --no-print-directory instructions
step "the driver program on other kernels (QEMU)"
wait "$fetching" || true
fetching=
TIDEWALL=target/debug/tidewall scripts/kernels.sh load
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
step "nothing left behind"
left=$(namespaces | { [ -n "$before" ] && grep -vxF "$before" || cat; })
[ -z "$left" ] || { echo "namespaces were left behind:"; echo "$left"; exit 1; }
