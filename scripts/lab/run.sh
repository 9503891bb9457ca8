#!/usr/bin/env bash
# A kernel's NFS client against an export: see README.md here. run.sh [JOB]
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD/scripts/lab
braid=${BRAID:-$PWD/target/release/braid}
lab=${BRAID_LAB:-/var/tmp/braid-lab}
job=${1:-$here/job.sh}
ns=braid-lab-$$
work=$(mktemp -d)
inside() { nsenter --net=/run/netns/$ns "$@"; }
ending() {
  [ -z "${killer:-}" ] || kill "$killer" 2>/dev/null || true
  "$braid" export "$work/mnt" --stop 2>/dev/null || true
  "$braid" unmount "$work/mnt" 2>/dev/null || true
  ip netns del $ns 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap ending EXIT

if [ ! -e "$lab/ready" ]; then
  mkdir -p "$lab"
  (cd "$lab" && apt-get download -q user-mode-linux && dpkg-deb -x user-mode-linux_*.deb . && rm user-mode-linux_*.deb)
  version=$(ls "$lab/usr/lib/uml/modules")
  mkdir -p "$lab/lib/modules"
  mv "$lab/usr/lib/uml/modules/$version" "$lab/lib/modules/"
  depmod -b "$lab" "$version"
  touch "$lab/ready"
fi

ip netns add $ns
ip -n $ns link set lo up
inside ip tuntap add dev tap0 mode tap
ip -n $ns addr add 10.78.0.1/24 dev tap0
ip -n $ns link set tap0 up

mkdir "$work/mnt" "$work/share"
truncate -s 2G "$work/disk0" "$work/disk1"
chmod 600 "$work"/disk?
"$braid" create lab "$work/disk0" "$work/disk1"
inside "$braid" mount "$work/disk0" "$work/disk1" "$work/mnt" -o log="$work/log"
inside "$braid" export "$work/mnt" --nfs --squash none --server lab
cp "$job" "$work/share/job.sh"
git clone -q --bare --depth 50 "file://$PWD" "$work/share/repository"

# Kills the server when the guest asks for it: seldom enough, or the supervisor gives up.
server() {
  "$braid" export "$work/mnt" --list --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["exports"][0]["ganesha_pid"] or "")'
}
while sleep 0.2; do
  [ -e "$work/mnt/kill-server" ] && rm "$work/mnt/kill-server" || continue
  pid=$(server)
  [ -z "$pid" ] || { kill -9 "$pid" && echo "server killed: $pid"; }
done &
killer=$!

inside timeout "${LIMIT:-900}" "$lab/usr/bin/linux.uml" mem=768M root=/dev/root rootfstype=hostfs rootflags=/ ro quiet \
  init="$here/init.sh" labshare="$work/share" labkernel="$lab" con=null con0=null,fd:1 \
  vec0:transport=tap,ifname=tap0,depth=32,gro=1 umid=lab$$ uml_dir="$work/share/" \
  </dev/null >"$work/console" 2>&1 || true
kill "$killer" && killer=
cat "$work/share/out" || tail "$work/console"
[ "$(cat "$work/share/status" 2>/dev/null)" = 0 ] || { echo "the guest's job failed"; exit 1; }

# What the guest has written is in the pool.
for sums in "$work"/share/sums-*; do
  name=${sums##*sums-}
  for n in 1 2; do md5sum <"$work/mnt/big-$name-$n"; done | cmp - "$sums"
done
"$braid" export --list
"$braid" export "$work/mnt" --stop
"$braid" unmount "$work/mnt"
"$braid" check "$work/disk0" "$work/disk1"
echo "lab: all is well"
