#!/bin/sh
# setup.sh [demo|test]: installs missing packages for `make demo` or (by default) for
# `make test`, and leaves no service enabled that it has installed.
#
# demo:
# - to build: clang and the kernel headers for the driver program, Rust if there is none
# - for the test bed: iproute2, ethtool, and wrk as the web server's client
# test, in addition:
# - tshark, and saaldump of atm-tools, to check captures
# - nft for the kernel's SYN proxy
# - clients: curl, ab, h2load, dnsperf, ssh
# - servers that run unmodified: Redis with its own tests, memcached, HAProxy, Unbound, nginx,
#   Squid, Node, sshd (for its client)
# - servers that fork: socat, dnsmasq, inetd, Apache
# - musl, for a program that cannot run on Tidewall
# - perf, valgrind to count instructions, Python for the tests on other kernels
# Without root the script checks only the packages for building. Tests that need more are
# skipped, and named.
set -eu

what=${1:-test}
case $what in demo | test) ;; *)
	echo "usage: $0 [demo|test]" >&2
	exit 2
	;;
esac

need=""
want() { # program package
	command -v "$1" >/dev/null 2>&1 || need="$need $2"
}
want clang clang
want cc gcc
[ -e /usr/include/linux/bpf.h ] || need="$need linux-libc-dev"
[ -e /usr/include/stdio.h ] || need="$need libc6-dev"
if ! PATH="$HOME/.cargo/bin:$PATH" command -v cargo >/dev/null 2>&1; then
	# Debian 12's own rustc is too old; rustc-web follows Firefox.
	need="$need rustc-web cargo-web"
	[ "$what" = demo ] || need="$need rust-web-clippy rustfmt-web"
fi
if [ "$(id -u)" = 0 ]; then
	want ip iproute2
	want ethtool ethtool
	want taskset util-linux
	want wrk wrk
fi
if [ "$(id -u)" = 0 ] && [ "$what" = test ]; then
	want nft nftables
	want tshark tshark
	want saaldump atm-tools
	want ping iputils-ping
	want curl curl
	want ab apache2-utils
	want valgrind valgrind
	want h2load nghttp2-client
	want squid squid
	want nginx nginx-light
	want redis-server redis-server
	want redis-cli redis-tools
	want tclsh tcl
	want memcached memcached
	want haproxy haproxy
	want unbound unbound
	want dnsperf dnsperf
	want node nodejs
	want perl perl-base
	want socat socat
	want dnsmasq dnsmasq-base
	want inetd openbsd-inetd
	want apache2 apache2-bin
	want ssh openssh-client
	want sshd openssh-server
	want nc netcat-openbsd
	want pkg-config pkg-config
	want musl-gcc musl-tools
	want setpriv util-linux
	want perf linux-perf
	want python3 python3
fi

# Disables the services of packages, except running ones, which are in use.
leave_disabled() { # packages
	for package in "$@"; do
		units=$(dpkg -L "$package" 2>/dev/null | sed -n 's#^\(/usr\)\{0,1\}/lib/systemd/system/\([^@/]*\.\(service\|socket\)\)$#\2#p')
		for unit in $units; do
			systemctl is-active -q "$unit" 2>/dev/null || systemctl disable -q "$unit" 2>/dev/null || :
		done
	done
}
# An earlier version of this script installed openssh-server, and left it enabled.
ours="apt-get install -y -qq --no-install-recommends"
if [ "$(id -u)" = 0 ] &&
	zgrep -hs "^Commandline: $ours" /var/log/apt/history.log* | grep -q ' openssh-server\( \|$\)'; then
	leave_disabled openssh-server
fi

redis_tests() {
	[ "$(id -u)" = 0 ] && [ "$what" = test ] || return 0
	sh "$(dirname "$0")/redis-tests.sh" /var/cache/tidewall/redis ||
		echo "without the sources of Redis: its own tests will be skipped" >&2
}
if [ -z "$need" ]; then
	redis_tests
	exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "missing:$need" >&2
	echo "install them, on Debian: sudo apt-get install$need" >&2
	exit 1
fi
echo "installing:$need"
apt-get update -qq
# Only the laboratory starts the servers that Tidewall is compared with, never the system.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod +x "$policy"
fi
DEBIAN_FRONTEND=noninteractive $ours $need >/dev/null
leave_disabled $need
redis_tests
