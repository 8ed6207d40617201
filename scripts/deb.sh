#!/bin/sh
# Builds Debian's packages of the last commit (debian/) into build/packages, with what lintian says of them. As root it installs what they
# are built with.
#
#     scripts/deb.sh
set -eu
cd "$(dirname "$0")/.."
. ./scripts/phase.sh
out=$PWD/build/packages
rm -rf "$out"
mkdir -p "$out"
if [ "$(id -u)" = 0 ]; then
    phase "packages to build with" "about 1 min" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends dpkg-dev lintian git xz-utils
    phase "packages that tern is built with" "about 2 min" env DEBIAN_FRONTEND=noninteractive apt-get -q build-dep -y --no-install-recommends ./
fi
version=$(dpkg-parsechangelog -S Version)
git archive --prefix="tern-${version%-*}/" HEAD | tar -x -C "$out"
git archive --prefix="tern-${version%-*}/" HEAD | xz -T0 >"$out/tern_${version%-*}.orig.tar.xz"
cd "$out/tern-${version%-*}"
phase "building" "about 2 min on 2 cores" dpkg-buildpackage --build=full -us -uc
cd ..
rm -r "tern-${version%-*}"
# The two tags are about uploads to Debian.
lintian --tag-display-limit 0 --suppress-tags initial-upload-closes-no-bugs,no-debian-changes --fail-on error,warning ./*.changes
ls -l ./*.deb
