#!/bin/sh
# Writes docs/compatibility.md: runs the programs of tools/tidewall/tests/programs/ on
# Tidewall and on Linux (as root), and names those whose answers were the same.
set -eu
cd "$(dirname "$0")/.."
rows=$(mktemp -d)
trap 'rm -rf "$rows"' EXIT
TIDEWALL_COMPATIBILITY=$rows TIDEWALL_MUST=1 cargo test --locked -p tidewall --test programs -- --test-threads=1
{
	cat <<'END'
# Programs that run unchanged

Written by `scripts/compatibility.sh` from the tests that passed: each program ran by `tidewall run` and on the kernel's sockets, was asked the same by Linux clients beyond a wire (`tools/tidewall/tests/programs/`), and every answer and its exit code were the same on both; what the report of `tidewall run --report` says of its sockets was checked, too. How it works, and what becomes Tidewall's: [preload.md](preload.md).

END
	printf 'On %s, Linux %s.\n\n' "$(. /etc/os-release && echo "$PRETTY_NAME")" "$(uname -r)"
	printf '| program | version | what was run | result | not supported |\n|---|---|---|---|---|\n'
	cat "$rows"/*
	cat <<'END'

Not reached at all, so refused by `tidewall run` or run on the kernel's sockets by `--or-kernel`: static programs, Go, musl, setuid programs and those whose files have capabilities, 32 bits ([manager.md](manager.md#tidewall-run)).

Programs that have other processes serve their clients (sshd, PostgreSQL, `socat fork`, Python's ForkingTCPServer and multiprocessing, node's cluster, inetd, prefork servers such as Apache's, dnsmasq by TCP, several workers of nginx) serve as on Linux, by the kernel's sockets; `tidewall run --report` says why ([preload.md](preload.md#listeners)). `cargo test -p tidewall --test forking -- --nocapture` counts their clients on both.

Programs with filters of system calls (seccomp): those that refuse what the stack calls keep the kernel's sockets, or are refused ([preload.md](preload.md#filters-of-system-calls)).
END
} >docs/compatibility.md
