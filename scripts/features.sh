#!/bin/sh
# features.sh [FEATURES]...: checks crate `tidewall` with no feature, with each one, and
# with all. An argument replaces the list: `none`, `all`, or features joined by commas.
set -eu
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PATH

[ $# -gt 0 ] || set -- none atm forward mio all
for features in "$@"; do
	case $features in
	none) chosen= ;;
	all) chosen=atm,forward,mio ;;
	*) chosen=$features ;;
	esac
	printf '== tidewall, features: %s\n' "$features"
	cargo check --locked -p tidewall --no-default-features --features "$chosen"
done
