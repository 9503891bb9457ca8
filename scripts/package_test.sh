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
# Nothing that is mounted there reaches other namespaces, and what others unmount goes here, too.
unshare --mount --propagation slave bash -euo pipefail -c '
  # Copies of mounts that are in use outside would keep them: their nodes could not leave.
  for dir in $(awk "\$3 == \"fuse.braid\" { print \$2 }" /proc/self/mounts); do umount -l "$dir"; done
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
