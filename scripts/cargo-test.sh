#!/bin/sh
# cargo-test.sh FILE ARGUMENTS...: runs `cargo test ARGUMENTS`, one test at a time. A test
# that fails is run twice more, alone. If it passes both times, its name is written to
# FILE and the run continues. Tests with real time and real interfaces share the machine
# with other processes, which can disturb them. A test that fails again fails the run.
set -eu
unsteady=$1
shift
log=$(mktemp)
trap 'rm -f "$log" "$log".*' EXIT

{
	cargo test "$@" --no-fail-fast -- --test-threads=1 2>&1 && : >"$log.passed"
} | tee "$log"
[ -e "$log.passed" ] && exit 0

# The targets that cargo lists at its end: `-p PACKAGE --test TARGET`, in the order of the runs.
sed -n '/^error: [0-9]* targets\{0,1\} failed:$/,$ s/^    `\(.*\)`$/\1/p' "$log" >"$log.targets"
# The names that each failed run lists at its end, one line per run. (Tests that run their
# own program again print such lists too, earlier.)
awk '
	function flush() { if (failed != "") print failed; failed = "" }
	/^     Running |^   Doc-tests / { flush() }
	/^failures:$/ { names = "" }
	/^    [^ ]+$/ { names = names " " $1 }
	/^test result: FAILED/ { failed = names }
	END { flush() }
' "$log" >"$log.names"
targets=$(wc -l <"$log.targets")
if [ "$targets" = 0 ] || [ "$targets" != "$(wc -l <"$log.names")" ]; then
	exit 1
fi

paste "$log.targets" "$log.names" >"$log.failed"
while IFS='	' read -r target names; do
	for name in $names; do
		for _ in 1 2; do
			# shellcheck disable=SC2086 # several words
			cargo test --locked $target -- --test-threads=1 --exact "$name" </dev/null
		done
		echo "$name ($target)" >>"$unsteady"
	done
done <"$log.failed"
