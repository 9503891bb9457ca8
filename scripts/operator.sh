#!/usr/bin/env bash
# A day of an operator, with nothing but the commands of the manual pages: makes the Debian package of a `braid` that
# is built, installs it in a Debian system that has nothing but the essential packages, and runs operator_day.sh
# there: operator.sh PROGRAM. Root.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."

work=$(mktemp -d)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT

printf '== package, in a clean system\n'
package=$(scripts/deb.sh "$program" "$work" --fast)
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
# The disks are units of a target on this very host.
mmdebstrap --quiet --variant=minbase --include=libiscsi7 "$release" "$root"
cp "$package" "$root/braid.deb"
cp scripts/operator_day.sh "$root/"
# In namespaces of its own: what is mounted there reaches nobody, and all processes end with the script.
unshare --mount --pid --fork --kill-child --propagation slave bash -euo pipefail -c '
  mount --rbind /dev "$1/dev"
  mount --make-rslave "$1/dev"
  mount -t proc proc "$1/proc"
  mount -t sysfs sysfs "$1/sys"
  mount -t tmpfs tmpfs "$1/run"
  mount -t tmpfs -o size=4G tmpfs "$1/srv"
  chroot "$1" /operator_day.sh' - "$root"
