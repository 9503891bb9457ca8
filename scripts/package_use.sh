#!/usr/bin/env bash
# Installs the package /braid.deb, uses it by the names that Debian's tools call it by, and removes it. Run by
# package_test.sh in a system of its own.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
step() { printf '== %s\n' "$1"; }
fail() { echo "$1" >&2; exit 1; }
# exits WITH COMMAND...
exits() {
  local status=0
  "${@:2}" || status=$?
  [ "$status" = "$1" ] || fail "exit status $status and not $1: ${*:2}"
}

disks=/srv/disks mnt=/safe
mkdir -p "$disks" "$mnt"
cleanup() { mountpoint -q "$mnt" && umount -l "$mnt" || true; }
trap cleanup EXIT
sums() { sha256sum "$disks"/*; }

step "install"
dpkg -i /braid.deb >/dev/null
braid version
for page in man8/braid.8 man8/braid-create.8 man8/braid-mount.8 man8/mount.braid.8 man8/fsck.braid.8 man7/braid.7; do
  zcat "/usr/share/man/$page.gz" | grep '^\.TH' >/dev/null || fail "no manual page $page"
done

step "make, check"
truncate -s 256M "$disks/0" "$disks/1"
exits 1 mkfs.braid "$disks/0"
mkfs.braid -q -L safe --mirror 2 "$disks/0" "$disks/1"
exits 0 fsck.braid -n "$disks/0:$disks/1"
exits 0 fsck.braid -a "$disks/0:$disks/1"
exits 16 fsck.braid -n
exits 16 braid check --nonsense
exits 8 fsck.braid -n /nowhere

step "udev"
[ -e /usr/lib/udev/rules.d/61-braid.rules ]
[[ "$(braid probe "$disks/1")" == *ID_FS_TYPE=braid_member*ID_FS_LABEL=safe* ]]
truncate -s 1M /srv/blank
exits 1 braid probe /srv/blank

step "mount by fstab"
echo "$disks/0:$disks/1 $mnt braid defaults,_netdev 0 0" >/etc/fstab
mount "$mnt"
echo kept >"$mnt/file"
exits 8 fsck.braid -y "$disks/0:$disks/1"

step "completions"
echo "scratch /scratch braid defaults 0 0" >>/etc/fstab
. /usr/share/bash-completion/completions/braid
# offers WORD LINE...: bash offers it in place of the last word of the line.
offers() {
  COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMP_TYPE=9
  _clap_complete_braid braid "${!#}" "" 2>/dev/null
  [[ " ${COMPREPLY[*]} " == *" $1 "* ]] || fail "$1 is not offered for '${*:2}' but ${COMPREPLY[*]}"
}
offers unmount braid unm
offers safe braid status s
offers scratch braid mount s

step "remove while it is mounted"
dpkg -r braid
[ "$(cat "$mnt/file")" = kept ]
echo more >"$mnt/later"
umount "$mnt"
dpkg -i /braid.deb >/dev/null
# The node leaves by itself.
for _ in $(seq 300); do
  status=0
  braid check "$disks/0" "$disks/1" || status=$?
  [ "$status" = 8 ] || break
  sleep 0.2
done
[ "$status" = 0 ]

step "remove for good: what is on the devices stays"
before=$(sums)
dpkg -P braid
[ ! -e /usr/bin/braid ] && [ ! -e /usr/sbin/mount.braid ] || fail "something is left"
[ "$(sums)" = "$before" ] || fail "the devices have changed"
dpkg -i /braid.deb >/dev/null
mount "$mnt"
[ "$(cat "$mnt/file" "$mnt/later")" = "$(printf 'kept\nmore')" ]
umount "$mnt"
