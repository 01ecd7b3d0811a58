#!/bin/sh
# Every test, in the order in which a failure says most: formatting and lints,
# unit and property tests, fuzz targets for a bounded time, the memory model,
# whole-system tests in network namespaces, other kernels, documentation. What was
# skipped is named at the end; where nothing is missing that a test needs, as for
# CI, a skipped test fails.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PATH
: "${BOLERO_RANDOM_TEST_TIME_MS:=3000}"
export BOLERO_RANDOM_TEST_TIME_MS

# What is built once gains nothing from being built in pieces.
if [ -n "${CI:-}" ] || [ ! -d target ]; then
	export CARGO_INCREMENTAL=0
fi

began=$(date +%s)
# What was there before is not the tests'.
namespaces() { ip netns list 2>/dev/null | sed -n 's/^\(tw-[^ ]*\).*/\1/p' | sort; }
before=$(namespaces)
step() { printf '\n== %s (after %s s)\n' "$*" $(($(date +%s) - began)); }

# Every test that skips writes a line here (tools/skip).
TIDEWALL_SKIPPED=$(mktemp)
export TIDEWALL_SKIPPED
# Tests that failed once beside others and passed alone.
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
# Other kernels' packages come from the network while programs are built; `load` below
# fetches what failed again, and says why.
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
