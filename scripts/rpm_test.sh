#!/usr/bin/env bash
# Makes an RPM package of a `braid`, installs it in a system of its own that has nothing else, looks at it and removes
# it: rpm_test.sh PROGRAM FOLDER.
set -euo pipefail
program=$(realpath "$1")
folder=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)

package=$("$here/rpm.sh" "$program" "$folder")
root=$folder/root
mkdir "$root"
# What it needs of other packages, and its scripts, are for a whole system.
in_root() { rpm --root "$root" --dbpath /var/lib/rpm "$@"; }
in_root --initdb
in_root --nodeps --noscripts -i "$package"

has() { [ -e "$root$1" ] || [ -L "$root$1" ] || { echo "the package has no $1" >&2; exit 1; }; }
for name in mount.braid mount.fuse.braid umount.braid umount.fuse.braid fsck.braid mkfs.braid; do
  has "/usr/sbin/$name"
  [ "$(readlink -f "$root/usr/sbin/$name")" = "$root/usr/bin/braid" ] || { echo "$name leads elsewhere" >&2; exit 1; }
done
"$program" --help | awk '/^Commands:/ {on = 1; next} /^$/ {on = 0} on && /^  [a-z]/ {print $1}' >"$folder/commands"
[ "$(wc -l <"$folder/commands")" -gt 30 ] || { echo "commands are not found" >&2; exit 1; }
while read -r command; do
  case $command in lmdd | xdd) continue ;; esac
  has "/usr/share/man/man8/braid-$command.8.gz"
done <"$folder/commands"
for file in "$here"/../packaging/systemd/*; do has "/usr/lib/systemd/system/$(basename "$file")"; done
for file in "$here"/../packaging/udev/*; do has "/usr/lib/udev/rules.d/$(basename "$file")"; done
for page in braid.7 fsck.braid.8 mkfs.braid.8 mount.braid.8 umount.fuse.braid.8; do
  has "/usr/share/man/man${page##*.}/$page.gz"
done
[ -e "$root/usr/share/man/man8/umount.braid.8.gz" ] || { echo "a page leads nowhere" >&2; exit 1; }
for file in bash-completion/completions/braid zsh/site-functions/_braid fish/vendor_completions.d/braid.fish \
  licenses/braid/LICENSE doc/braid/GUIDE.md; do has "/usr/share/$file"; done
[ "$("$root/usr/bin/braid" --version)" = "$("$program" --version)" ] || { echo "another version" >&2; exit 1; }
in_root --nodeps --noscripts -e braid
left=$(find "$root" -path "$root/var" -prune -o ! -type d -print)
[ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }
