#!/bin/sh
# redis-tests.sh DIRECTORY: installs there the tests that the Debian source of the installed
# Redis has for a running server. The source comes from Debian's own archive, apart from the
# package lists of this machine, and is verified in the same way (apt-secure(8)).
set -eu
directory=$1
[ ! -e "$directory/runtest" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/lists/partial" "$work/redis"
. /etc/os-release
cat >"$work/sources.list" <<END
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $VERSION_CODENAME main
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian-security $VERSION_CODENAME-security main
END
apt() {
	apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
		-o Dir::State::lists="$work/lists" -o APT::Sandbox::User=root "$@"
}
cd "$work"
apt update
version=$(dpkg-query -W -f '${source:Version}' redis-server)
# The archive keeps only the newest version of each package.
apt source --download-only "redis=$version" 2>/dev/null || apt source --download-only redis
tar xzf redis_*.orig.tar.gz -C redis --strip-components 1
mkdir -p redis/src
for program in redis-server redis-cli redis-benchmark; do
	ln -sf "$(command -v $program)" "redis/src/$program"
done
mkdir -p "$directory"
cp -r redis/tests redis/src "$directory"
cp redis/runtest "$directory" # last: it marks the copy as complete
