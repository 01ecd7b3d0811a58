#!/bin/sh
# fetch.sh FOLDER SERIES...: fetches packages with apt and unpacks them under FOLDER; it installs nothing.
# FOLDER/tools has QEMU and the guest's programs, from Debian 13. FOLDER/SERIES has the image and modules
# of the newest kernel of that series (6.1, 6.12, ...), or of all available ones (`newest`). Existing
# folders are not fetched again: delete FOLDER/SERIES to look for a newer kernel.
set -eu
export LC_ALL=C
folder=$(realpath -m "$1")
shift
tools="qemu-system-x86 busybox-static dash iproute2 ethtool nftables libgcc-s1"
suites="bookworm trixie trixie-backports forky sid"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
apt=$folder/apt

say() { echo "fetch: $*" >&2; }
fail() {
	say "$1"
	say "$2"
	exit 1
}

# Runs apt's program $1 with separate lists and archives, and an empty status.
apt() {
	program=$1
	shift
	"$program" -qq -o Dir::Etc::sourcelist="$apt/lane.sources" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
		-o Dir::State::status="$apt/status" -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt" \
		-o APT::Architecture=amd64 -o APT::Default-Release=trixie -o APT::Sandbox::User="$(id -un)" \
		-o Acquire::Languages=none "$@"
}

# Fetches the lists of all suites that the keyring can verify, from the mirror of this machine's apt.
update() {
	[ ! -e "$apt/updated" ] || return 0
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
		fail "no apt-get and dpkg-deb here" "run this on Debian"
	mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
		awk '$2 !~ /-security$/ { print $1; exit }')
	[ -n "$mirror" ] && [ -e "$keyring" ] ||
		fail "apt has no Debian mirror or $keyring is missing" "see /etc/apt; apt-get install debian-archive-keyring"
	rm -rf "$apt"
	mkdir -p "$apt/lists/partial" "$apt/archives/partial"
	: >"$apt/status"
	: >"$apt/lane.sources"
	for suite in $suites; do
		say "lists of $suite"
		printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
			"$mirror" "$suite" "$keyring" >"$apt/one.sources"
		if apt apt-get -o Dir::Etc::sourcelist="$apt/one.sources" -o APT::Get::List-Cleanup=0 \
			-o APT::Update::Error-Mode=any update >&2; then
			{ cat "$apt/one.sources"; echo; } >>"$apt/lane.sources"
		else
			say "$suite is left out: its list cannot be had from $mirror or verified with $keyring"
		fi
	done
	[ -s "$apt/lane.sources" ] || fail "no list could be fetched" "is there a network? try: apt-get update"
	touch "$apt/updated"
}

# Fetches packages and unpacks them as $1.
unpack() {
	name=$1
	shift
	say "$name: $*"
	rm -rf "$apt/archives" "$folder/$name.partial"
	mkdir -p "$apt/archives/partial" "$folder/$name.partial"
	if [ "$name" = tools ]; then
		apt apt-get -y -d --no-install-recommends install "$@" >/dev/null
	else
		(cd "$apt/archives" && apt apt-get download "$@" >/dev/null)
	fi || fail "$name could not be fetched" "is there a network? then delete $apt and repeat"
	for package in "$apt"/archives/*.deb; do dpkg-deb -x "$package" "$folder/$name.partial"; done
	rm -rf "$apt/archives"
	mv "$folder/$name.partial" "$folder/$name"
}

# Prints the packages of the newest kernel of a series; later kernels have several.
packages() {
	[ "$1" = newest ] && pattern='[0-9.]*' || pattern="$(echo "$1" | sed 's/\./\\./g')[.-][0-9.]*"
	version=$(apt apt-cache pkgnames linux-image- |
		sed -nE "s/^linux-image-($pattern(-[0-9]+|\+deb[0-9]+)?)-amd64$/\1/p" | sort -V | tail -1)
	[ -n "$version" ] || fail "no kernel $1 in $suites" "choose another series with --kernel"
	for part in image binary modules; do
		apt apt-cache show "linux-$part-$version-amd64" 2>/dev/null | sed -n 's/^Package: //p' | sort -u
	done
}

mkdir -p "$folder"
if [ ! -d "$folder/tools" ]; then
	update
	# shellcheck disable=SC2086
	unpack tools $tools
fi
for series; do
	[ ! -d "$folder/$series" ] || continue
	update
	names=$(packages "$series")
	# shellcheck disable=SC2086
	unpack "$series" $names
done
