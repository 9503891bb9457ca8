#!/usr/bin/env bash
# Makes the Debian package of a `braid` that is built, has lintian look at it, and installs, uses and removes it in
# a Debian system that has nothing but the essential packages: package_test.sh PROGRAM. Root.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."

work=$(mktemp -d)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT
step() { printf '== %s\n' "$1"; }

step "package"
package=$(scripts/deb.sh "$program" "$work" --fast)
lintian --allow-root --fail-on error "$package"

step "a clean system"
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
mmdebstrap --quiet --variant=minbase "$release" "$root"
cp "$package" "$root/braid.deb"
cp scripts/package_use.sh "$root/"
# Nothing that is mounted there reaches other namespaces, and what others unmount goes here, too.
unshare --mount --propagation slave bash -euo pipefail -c '
  mount --rbind /dev "$1/dev"
  mount --make-rslave "$1/dev"
  mount -t proc proc "$1/proc"
  mount -t sysfs sysfs "$1/sys"
  mount -t tmpfs tmpfs "$1/run"
  chroot "$1" /package_use.sh' - "$root"

step "units"
mkdir "$work/units"
for unit in packaging/systemd/*; do
  sed "s#/usr/bin/braid#$root/usr/bin/braid#" "$unit" >"$work/units/${unit##*/}"
done
systemd-analyze verify --man=no "$work"/units/*
