#!/usr/bin/env bash
# A day of an operator, with nothing but the commands of the manual pages: installs the package in a copy of the system
# that clean_system.sh has made, and runs operator_day.sh there: operator.sh FOLDER. Root.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/.."

work=$(mktemp -d)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT

printf '== a clean system\n'
cp -a "$folder/root" "$root"
cp "$folder/braid.deb" scripts/operator_day.sh "$root/"
# In namespaces of its own: what is mounted there reaches nobody, and all processes end with the script.
unshare --mount --pid --fork --kill-child --propagation slave bash -euo pipefail -c '
  # Copies of mounts that are in use outside would keep them: their nodes could not leave.
  for dir in $(awk "\$3 == \"fuse.braid\" { print \$2 }" /proc/self/mounts); do umount -l "$dir"; done
  mount --rbind /dev "$1/dev"
  mount --make-rslave "$1/dev"
  mount -t proc proc "$1/proc"
  mount -t sysfs sysfs "$1/sys"
  mount -t tmpfs tmpfs "$1/run"
  mount -t tmpfs -o size=4G tmpfs "$1/srv"
  chroot "$1" /operator_day.sh' - "$root"
