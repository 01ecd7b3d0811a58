#!/bin/sh
# Writes docs/compatibility.md: runs the programs of apps/tidewall/tests/programs/ on
# Tidewall and on Linux (as root), and lists those whose answers were the same.
set -eu
cd "$(dirname "$0")/.."
rows=$(mktemp -d)
trap 'rm -rf "$rows"' EXIT
TIDEWALL_COMPATIBILITY=$rows TIDEWALL_MUST=1 cargo test --locked -p tidewall-cli --test programs -- --test-threads=1
{
	cat <<'END'
# Programs that run unchanged

`scripts/compatibility.sh` writes this page from the tests that passed (`apps/tidewall/tests/programs/`). Each program ran under `tidewall run` and on kernel sockets, and Linux clients on another link sent the same requests to both. Every answer and the exit code were the same. The tests also check what `tidewall run --report` reports about the program's sockets. [preload.md](preload.md) explains the mechanism, and which sockets become Tidewall's.

END
	printf 'On %s, Linux %s.\n\n' "$(. /etc/os-release && echo "$PRETTY_NAME")" "$(uname -r)"
	printf '| program | version | what was run | result | not supported |\n|---|---|---|---|---|\n'
	cat "$rows"/*
	cat <<'END'

These programs are not reached at all: static programs, Go, musl, setuid programs, programs whose files have capabilities, and 32-bit programs. `tidewall run` refuses them, or runs them on kernel sockets with `--or-kernel` ([manager.md](manager.md#tidewall-run)).

Some programs let other processes serve their clients: sshd, PostgreSQL, `socat fork`, Python's ForkingTCPServer and multiprocessing, node's cluster, inetd, prefork servers such as Apache's, dnsmasq over TCP, and nginx with several workers. They serve as on Linux, on kernel sockets; `tidewall run --report` gives the reason ([preload.md](preload.md#listeners)). `cargo test -p tidewall-cli --test forking -- --nocapture` counts their clients on both.

A program that filters system calls (seccomp) and refuses the stack's calls keeps kernel sockets, or is refused ([preload.md](preload.md#filters-of-system-calls)).
END
} >docs/compatibility.md
