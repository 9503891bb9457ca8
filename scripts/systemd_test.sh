#!/usr/bin/env bash
# Whether the package's units do what they should in a systemd that runs: systemd_test.sh PROGRAM [FOLDER]. Makes a
# Debian system with systemd in FOLDER (a temporary one), boots it in a container by systemd-nspawn, and runs
# systemd_day.sh there; then it looks how the node left the pool when that system was shut down.
# Needs root, mmdebstrap, systemd-nspawn (Debian: systemd-container), and half a minute, of which Debian's packages take
# most. Nothing is registered with this machine's own systemd, which need not run.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
program=$(realpath "$1")
work=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/braid-systemd.XXXXXX")
cd "$(dirname "$0")/.."
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT

release=$(. /etc/os-release; echo "$VERSION_CODENAME")
mmdebstrap --quiet --variant=minbase --include=systemd,dbus,udev,procps,libiscsi7 "$release" "$root"
mv "$(scripts/deb.sh "$program" "$work" --fast)" "$root/braid.deb"
cp scripts/systemd_day.sh "$root/"
mkdir "$root/out"
# Its end is the system's, whatever came of it.
cat >"$root/etc/systemd/system/day.service" <<'UNIT'
[Unit]
Description=What is tried
After=multi-user.target
SuccessAction=poweroff
FailureAction=poweroff

[Service]
Type=oneshot
ExecStart=/systemd_day.sh
ExecStopPost=/bin/sh -c 'echo "$EXIT_STATUS" >/out/status'
StandardOutput=file:/out/log
StandardError=inherit
TimeoutStartSec=120

[Install]
WantedBy=default.target
UNIT
ln -sf /etc/systemd/system/day.service "$root/etc/systemd/system/multi-user.target.wants/"

timeout 180 systemd-nspawn --quiet --register=no --keep-unit --private-network --boot --directory="$root" \
  --bind=/dev/fuse --console=pipe </dev/null >"$work/console" 2>&1 || { cat "$work/console" >&2; exit 1; }
cat "$root/out/log"
[ "$(cat "$root/out/status")" = 0 ] || { echo "systemd_day.sh failed" >&2; exit 1; }
disks=("$root/srv/disk0" "$root/srv/disk1")
"$program" history "${disks[0]}:${disks[1]}" | tail -1 | grep -q "the node leaves" ||
  { echo "the node did not leave when the system was shut down" >&2; exit 1; }
"$program" check "${disks[@]}" | grep -q clean
echo "the node has left in order"
