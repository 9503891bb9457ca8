#!/bin/sh
# The guest's first process: mounts what programs need, runs the job, leaves output and status in the shared directory.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
for dir in /run /tmp /mnt; do mount -t tmpfs none $dir; done
value() { sed "s/.*$1=\([^ ]*\).*/\1/" /proc/cmdline; }
mkdir /run/share /run/lab
mount -t hostfs none /run/share -o "$(value labshare)"
mount -t hostfs none /run/lab -o "$(value labkernel)"
ip link set lo up
ip addr add 10.78.0.2/24 dev vec0
ip link set vec0 up
modprobe -d /run/lab -a nfs nfsv3 nfsv4
cd /run/share
sh -eu ./job.sh >out 2>&1
echo $? >status
dmesg >dmesg
sync
echo o >/proc/sysrq-trigger
sleep 30
