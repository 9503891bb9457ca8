#!/usr/bin/env bash
# Runs a program of the system in ROOT there, with what it needs mounted: enter_system.sh ROOT PROGRAM. The caller gives
# it a mount namespace of its own (unshare --mount --propagation slave), so that what is mounted here reaches no other.
set -euo pipefail
root=$1
# Copies of mounts that are in use outside would keep them: their nodes could not leave.
for dir in $(awk '$3 == "fuse.braid" { print $2 }' /proc/self/mounts); do umount -l "$dir"; done
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
chroot "$root" "$2"
