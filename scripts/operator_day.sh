#!/usr/bin/env bash
# What an operator does and sees on a bad day, by the installed package /braid.deb alone. Run by operator.sh in a system
# of its own. The disks are units of `braid target`, which can be told to fail.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C
mount -t tmpfs -o size=4G tmpfs /srv
began=$SECONDS
step() { printf '== %s (%s s)\n' "$1" "$((SECONDS - began))"; }
fail() { echo "$1" >&2; exit 1; }
# says TEXT COMMAND...: it succeeds, and says TEXT.
says() {
  local out
  out=$("${@:2}" 2>&1) || fail "'${*:2}' fails: $out"
  [[ "$out" == *"$1"* ]] || fail "'${*:2}' does not say '$1': $out"
}
# refuses TEXT COMMAND...: it fails, and says TEXT.
refuses() {
  local out
  if out=$("${@:2}" 2>&1); then fail "'${*:2}' succeeds: $out"; fi
  [[ "$out" == *"$1"* ]] || fail "'${*:2}' does not say '$1': $out"
}
# within SECONDS TEXT COMMAND...: it comes to say TEXT.
within() {
  local end=$((SECONDS + $1)) out=
  while [ "$SECONDS" -le "$end" ]; do
    out=$("${@:3}" 2>&1) || true
    [[ "$out" == *"$2"* ]] && return
    sleep 0.2
  done
  fail "'${*:3}' does not come to say '$2': $out"
}
cleanup() {
  for dir in /a /b; do ! mountpoint -q "$dir" || umount -l "$dir"; done
}
trap cleanup EXIT
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

step "install"
dpkg -i /braid.deb >/dev/null
[ -e /usr/share/man/man8/braid-history.8.gz ] || fail "no manual pages"

step "disks that can fail"
cd /srv
umask 027
truncate -s 256M d0 d1 d2 d3 s0 n0
braid target --listen 127.0.0.1:0 --control /run/target d0 d1 d2 d3 s0 n0 >/run/units 2>/run/target.log &
within 10 "/5" cat /run/units
mapfile -t unit </run/units

step "make a pool, share it between two nodes"
mkdir -p /a /b
braid create safe --mirror 2 "${unit[@]:0:4}" >/dev/null
braid mount "${unit[@]:0:4}" /a
braid mount "${unit[@]:0:4}" /b
says "OK" braid status /a
braid spare /a "${unit[4]}" >/dev/null
says "any one member may be lost" braid status /b

step "load, from both"
mkdir /a/kept
cp -r /usr/bin /usr/lib/git-core /a/kept/ 2>/dev/null || cp -r /usr/bin /a/kept/
expected=$(sums /a/kept)
[ "$(sums /b/kept)" = "$expected" ] || fail "the other node sees something else"

step "upgrade: one node after the other, the pool stays in use"
says "format" braid upgrade --list /a
for dir in /a /b; do
  [ "$dir" = /a ] && other=/b || other=/a
  braid unmount "$dir"
  dpkg -i /braid.deb >/dev/null
  echo "while $dir is away" >"$other/upgrade"
  braid mount "${unit[@]:0:5}" "$dir"
  [ "$(cat "$dir/upgrade")" = "while $dir is away" ] || fail "$dir does not see what was written meanwhile"
done

step "images of the disks, made one after the other"
braid freeze /a -- sh -c 'for d in d0 d1 d2 d3; do cp --sparse=always "$d" "image-$d"; done'
[ -s image-d3 ] || fail "no images"
rm image-d?

step "programs go on"
( cd /b; for i in $(seq 100000); do echo "$i" >"load"; [ -e /run/stop-load ] && exit 0; done ) &
load=$!

step "a disk fails: the spare takes over"
braid target --tell /run/target "add write fail lun=1" >/dev/null
within 20 "has failed" braid history /a
within 60 "is filled and in use" braid events /a
within 20 "any one member may be lost" braid status /a
# The failed disk has the spare's number now.
failed=$(braid status /a | sed -n 's/^ *\([0-9]*\)  *iscsi:.*failed.*/\1/p')
says "holds no data" braid status /a
braid target --tell /run/target "clear" >/dev/null
braid remove /a "$failed" >/dev/null

step "another disk is replaced"
says "is filled and in use" braid replace /a 0 "${unit[5]}"
[ "$(sums /b/kept)" = "$expected" ] || fail "something is lost"

step "a node is killed"
touch /run/stop-load
wait "$load" || fail "the load failed"
echo survives >/b/synced
sync /b/synced
pid=$(braid nodes /a | awk '$NF == "/b" { print $(NF - 1) }')
kill -9 "$pid"
[ "$(cat /a/synced)" = survives ] || fail "what was synced is lost"
within 20 "died: its journal is replayed" braid history /a
umount -l /b

step "the pool is filled, and freed"
dd if=/dev/zero of=/a/full bs=1M status=none 2>/run/dd && fail "the pool is never full"
grep -q "No space left" /run/dd || fail "$(cat /run/dd)"
says "FULL" braid status /a
rm /a/full
within 20 "OK" braid status /a
echo "room again" >/a/room
sync /a/room

step "a disk rots: the scrub heals metadata, and names the file and the place of the rest"
devices=("${unit[5]}" "${unit[4]}" "${unit[2]}" "${unit[3]}")
for n in $(seq 1000 1511); do printf '%-4096s' "rotten block $n"; done >/run/rotten
cp /run/rotten /a/rotten
mkdir /a/small
# Contents that fit stand in the inode.
for n in $(seq 1000 1100); do echo "rotten inode $n" >"/a/small/$n"; done
braid unmount /a
# rot PLACE: a byte of the third disk becomes another one, behind everything's back.
rot() { printf '\377' | dd of=d2 bs=1 seek="$1" conv=notrunc status=none; }
# Of both the last on the disk: before them are the journals, whose records of old do not count.
inode=$(grep -abo 'rotten inode [0-9]*' d2 | tail -1)
block=$(grep -abo 'rotten block [0-9]*' d2 | tail -1)
rot "${inode%%:*}"
rot $((${block%%:*} + 77))
offset=$(((${block##* } - 1000) * 4096))
braid mount "${devices[@]}" /a
if braid scrub /a >/run/scrub 2>&1; then fail "the scrub finds nothing: $(cat /run/scrub)"; fi
cat /run/scrub
grep -q "nothing says which is right" /run/scrub || fail "the contents are not found"
grep -q ", 0 B healed" /run/scrub && fail "the inode is not healed"
grep -q "^  \"/rotten\" (inode [0-9]*): at byte $offset$" /run/scrub || fail "it does not name /rotten at $offset"
grep -qF "${unit[2]} byte $((${block%%:*} / 512 * 512))" /run/scrub || fail "it does not name the place on the disk"
says "DAMAGED" braid status /a
within 10 "the scrub has ended" braid history -n 3 /a
[ "$(cat "/a/small/${inode##* }")" = "rotten inode ${inode##* }" ] || fail "the inode is lost"

step "the file is put back: the pool is whole again"
dd if=/run/rotten of=/a/rotten bs=1M conv=notrunc,fsync status=none
says ", 0 B healed" braid scrub /a
says "health: OK" braid status /a
cmp /run/rotten /a/rotten

step "what the history says"
braid unmount /a
name=$(IFS=:; echo "${devices[*]}")
braid history "$name" >/run/history
for told in "create: 4 members" "the node has joined, at /a" "the node has joined, at /b" "spare: " \
  "the pool is degraded" "the pool is whole again" "has failed" "replace: member 0" "remove: member" "died: its journal is replayed" \
  "a scrub has begun" "the scrub has ended" "the node leaves"; do
  grep -qF -- "$told" /run/history || { cat /run/history >&2; fail "the history does not say '$told'"; }
done
[ "$(braid events --json "$name" | wc -l)" = "$(wc -l </run/history)" ] || fail "events and history differ"

step "the end"
braid check "${devices[@]}" >/run/check || fail "$(cat /run/check)"
braid destroy "${devices[@]}" --yes >/dev/null
refuses "" braid mount "${devices[@]}" /a
step "done"
