#!/usr/bin/env bash
# A pool as a unit of a systemd that runs, by the installed package /braid.deb alone. Run by systemd_test.sh in a system
# of its own, as a service of that systemd.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C SYSTEMD_PAGER=cat SYSTEMD_COLORS=0
step() { printf '\n== %s\n' "$1"; }
fail() { echo "$1" >&2; journalctl -o cat -u 'braid*' >&2; exit 1; }
# run COMMAND: shows it and what it prints.
run() { printf '# %s\n' "$*"; "$@"; }
# within SECONDS COMMAND...: it comes to succeed.
within() {
  local end=$((SECONDS + $1))
  until "${@:2}" >/dev/null 2>&1; do
    [ "$SECONDS" -le "$end" ] || fail "'${*:2}' does not come to succeed"
    sleep 0.1
  done
}

step "the package, a pool and its configuration"
run dpkg -i /braid.deb >/dev/null
mkdir /scratch
truncate -s 128M /srv/disk0 /srv/disk1
braid create scratch --mirror 2 /srv/disk0 /srv/disk1 >/dev/null
mkdir -p /etc/braid
printf 'DIR=/scratch\nDEVICES=/srv/disk0 /srv/disk1\n' >/etc/braid/scratch.conf
run cat /etc/braid/scratch.conf

step "the unit is started, and mounts the pool"
run systemctl enable --now braid@scratch.service 2>&1
run systemctl is-active braid@scratch.service || fail "it is not active"
mountpoint -q /scratch || fail "nothing is mounted"
run systemctl show -p StatusText,NRestarts braid@scratch.service
run journalctl -o cat -u braid@scratch.service
echo kept >/scratch/file
sync /scratch/file

step "a node that dies is started again"
mkdir -p /run/systemd/system/braid@scratch.service.d
printf '[Service]\nRestartSec=1\n' >/run/systemd/system/braid@scratch.service.d/soon.conf
systemctl daemon-reload
run systemctl kill --kill-whom=main -s KILL braid@scratch.service
within 30 grep -q kept /scratch/file
within 5 systemctl is-active braid@scratch.service
run systemctl show -p NRestarts braid@scratch.service

step "timers"
run systemctl enable --now braid-scrub@scratch.timer braid-trim@scratch.timer 2>&1
run systemctl list-timers --all 'braid-*' | tee /run/timers
for timer in scrub trim; do grep -q "braid-$timer@scratch.timer" /run/timers || fail "no timer of $timer"; done
run systemctl start braid-scrub@scratch.service
run journalctl -o cat -u braid-scrub@scratch.service
run systemctl start braid-scrub@scratch.service
journalctl -o cat -u braid-scrub@scratch.service | grep -q "not yet" || fail "a scrub is due again at once"
run systemctl start braid-trim@scratch.service

step "the unit is stopped: the pool is unmounted, in order"
run systemctl stop braid@scratch.service
mountpoint -q /scratch && fail "it is mounted still"
run systemctl show -p Result,ExecMainStatus braid@scratch.service
run braid check /srv/disk0 /srv/disk1

step "removing the package stops the unit"
run systemctl start braid@scratch.service
run dpkg --remove braid >/dev/null 2>&1
mountpoint -q /scratch && fail "it is mounted still"
run dpkg -i /braid.deb >/dev/null
run braid check /srv/disk0 /srv/disk1

step "the system is shut down while the pool is mounted"
run systemctl start braid@scratch.service
echo "at the end" >/scratch/file
