#!/usr/bin/env bash
# Installs, uses and removes the package in a copy of the system that clean_system.sh has made:
# package_test.sh FOLDER. Root.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/.."

work=$(mktemp -d)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT
step() { printf '== %s\n' "$1"; }

step "a clean system"
cp -a "$folder/root" "$root"
chroot "$root" dpkg --purge libiscsi7 >/dev/null
cp "$folder/braid.deb" scripts/package_use.sh "$root/"
unshare --mount --propagation slave scripts/enter_system.sh "$root" /package_use.sh

step "units"
mkdir "$work/units"
for unit in packaging/systemd/*; do
  sed "s#/usr/bin/braid#$root/usr/bin/braid#" "$unit" >"$work/units/${unit##*/}"
done
systemd-analyze verify --man=no "$work"/units/*
