#!/bin/sh
# Tests on real kernels with emulated network cards, in QEMU: kernels.sh load, kernels.sh run, kernels.sh --help.
set -eu
if ! command -v python3 >/dev/null; then
	echo "SKIPPED kernels: no python3 (apt-get install python3)" | tee -a "${TIDEWALL_SKIPPED:-/dev/null}"
	[ "${CI:-}" != true ] && [ "${1:-}" = load ]
	exit
fi
exec python3 -B "$(dirname "$0")/kernels/lane.py" "$@"
