#!/usr/bin/env bash
# The main job, on real data: a 4-way striped pool, one file system, two nodes that meet only
# through the devices. Leaves nothing behind (KEEP=1 keeps devices and mounts).
#
#   DEVICES="/dev/sdb /dev/sdc ..."   use these block devices instead of sparse files: what is on them
#                                     is lost, and at the end they are empty
#   CONFIRM=yes                       do not ask before
#   DEMO_SMALL=1                      a smaller tree and file, for continuous integration
set -euo pipefail
cd "$(dirname "$0")/.."

braid=$PWD/target/release/braid
work=$(mktemp -d "${TMPDIR:-/tmp}/braid-demo.XXXXXX")
a=$work/a b=$work/b
mkdir -p "$a" "$b"
devices=()
files_min=20000 big_mib=2048 device_size=6G
if [ -n "${DEMO_SMALL:-}" ]; then files_min=3000 big_mib=256 device_size=2G; fi
started=$SECONDS
overwritten=""

say()  { printf '\n\033[1m%s\033[0m\n' "$*"; }
note() { printf '   %s\n' "$*"; }
fail() { printf '\nFAILED: %s\n' "$*" >&2; exit 1; }
mounted() { grep -q " $1 fuse" /proc/mounts; }

# Both labels of each device go; so no pool that nobody wants is found later.
wipe_labels() {
  local device size
  for device in "${devices[@]}"; do
    size=$(blockdev --getsize64 "$device")
    dd if=/dev/zero of="$device" bs=1M count=1 conv=fsync status=none
    dd if=/dev/zero of="$device" bs=1M count=2 seek="$((size / 1048576 - 2))" conv=fsync status=none
  done
  note "the demo's labels are gone from: ${devices[*]} (so is what was on them before)"
}

cleanup() {
  local status=$?
  set +e
  for pid in $(jobs -p); do kill "$pid" 2>/dev/null; done
  wait 2>/dev/null
  if [ -n "${KEEP:-}" ]; then
    note "kept: $work"
    if mounted "$a" || mounted "$b"; then note "unmount with: $braid unmount DIR"; fi
  else
    for dir in "$a" "$b"; do
      if mounted "$dir"; then "$braid" unmount "$dir" 2>/dev/null || "$braid" unmount --lazy "$dir"; fi
    done
    if [ -n "$overwritten" ]; then wipe_labels; fi
    rm -rf "$work"
  fi
  exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [ "$(id -u)" -ne 0 ] && ! command -v fusermount3 >/dev/null; then fail "not root, and no fusermount3"; fi
[ -c /dev/fuse ] || fail "/dev/fuse is missing: the kernel's fuse module is needed"

# ---------------------------------------------------------------- devices
force=()
if [ -n "${DEVICES:-}" ]; then
  read -r -a devices <<<"$DEVICES"
  total=0
  for device in "${devices[@]}"; do
    [ -e "$device" ] || fail "$device: no such device; nothing was touched"
    [ -b "$device" ] || fail "$device is not a block device (without DEVICES the demo makes files of its own); nothing was touched"
    total=$((total + $(blockdev --getsize64 "$device")))
  done
  [ "$total" -ge $(((big_mib + 2048) << 20)) ] ||
    fail "the demo needs $((big_mib + 2048)) MiB, these devices have $((total >> 20)); nothing was touched"
  # In use, mounted, read-only, too small, given twice: not even confirmed.
  "$braid" create demo "${devices[@]}" --force --dry-run >/dev/null || fail "nothing was touched"
  printf '\nEVERYTHING ON THESE DEVICES WILL BE DESTROYED:\n'
  lsblk -o NAME,SIZE,MODEL,FSTYPE,MOUNTPOINT "${devices[@]}" 2>/dev/null || ls -l "${devices[@]}"
  for device in "${devices[@]}"; do
    "$braid" create demo "$device" --dry-run 2>&1 >/dev/null | sed -n 's/, which would be lost.*/: IT WILL BE LOST/; s/^braid: /   /p' || true
  done
  if [ "${CONFIRM:-}" != yes ]; then
    answer=""
    read -r -p "Type yes to go on (CONFIRM=yes answers for scripts): " answer || true
    [ "$answer" = yes ] || fail "not confirmed; nothing was touched"
  fi
  overwritten=yes
  force=(--force)
else
  for n in 0 1 2 3; do
    truncate -s "$device_size" "$work/disk$n"
    devices+=("$work/disk$n")
  done
fi

say "1. A pool striped over ${#devices[@]} devices, with a file system on it"
"$braid" create demo "${devices[@]}" "${force[@]}"

say "2. Two nodes mount it: two processes that share nothing but the devices"
"$braid" mount "${devices[@]}" "$a" -o "log=$work/a.log"
"$braid" mount "${devices[@]}" "$b" -o "log=$work/b.log"
"$braid" status "${devices[@]}"

# ---------------------------------------------------------------- input
say "3. Real data goes in on node A while node B looks on"
# /usr/share and the headers of this machine, then Rust's own tree, until there are enough files.
find /usr/share /usr/include "$(rustc --print sysroot 2>/dev/null || echo /usr/lib)" /usr/lib \
  -xdev -type f -size -1024k 2>/dev/null | head -n "$files_min" >"$work/list" || true
count=$(wc -l <"$work/list")
[ "$count" -ge "$files_min" ] || note "this machine has only $count files to copy"
head -c "$((big_mib << 20))" /dev/urandom >"$work/big"
(cd / && tr '\n' '\0' <"$work/list" | xargs -0 sha256sum | sed 's|  /|  |') >"$work/tree.sum"
(cd "$work" && sha256sum big) >"$work/big.sum"
note "$count files, $(cd / && tr '\n' '\0' <"$work/list" | du -ch --files0-from=- | tail -1 | cut -f1); one file of $big_mib MiB"

touch "$work/copying"
( while [ -e "$work/copying" ]; do ls -lR "$b" >/dev/null 2>&1 || true
  find "$b/tree" -type f 2>/dev/null | shuf -n 50 | xargs -r cat >/dev/null 2>&1 || true; sleep 0.2; done ) &
onlooker=$!
t=$SECONDS
mkdir "$a/tree"
tar -C / -cf - -T <(sed 's|^/||' "$work/list") 2>/dev/null | tar -C "$a/tree" -xf -
note "tree copied in $((SECONDS - t)) s"
t=$SECONDS
cp "$work/big" "$a/big"
sync -f "$a/big"
note "large file copied in $((SECONDS - t)) s"
rm "$work/copying"; wait "$onlooker"

say "4. Node B verifies every checksum"
t=$SECONDS
(cd "$b/tree" && sha256sum --quiet -c "$work/tree.sum") || fail "the tree differs on node B"
(cd "$b" && sha256sum --quiet -c "$work/big.sum") || fail "the large file differs on node B"
note "$count files and the large file are identical on node B ($((SECONDS - t)) s)"

# ---------------------------------------------------------------- coherence
say "5. A change on one node is there on the other at once"
echo "from A" >"$a/note"
exec 7<"$b/note"                                      # stays open on B
[ "$(cat "$b/note")" = "from A" ] || fail "B does not see A's file"
echo "edited on B" >"$b/note"
[ "$(cat "$a/note")" = "edited on B" ] || fail "A does not see B's edit"
echo "and again on A" >"$a/note"
[ "$(cat <&7)" = "and again on A" ] || fail "a file open on B does not show A's edit"
exec 7<&-
mv "$a/note" "$a/renamed"
if [ -e "$b/note" ] || [ ! -e "$b/renamed" ]; then fail "the rename is not seen on B"; fi
ln "$b/renamed" "$b/second"; ln -s renamed "$b/link"
[ "$(stat -c %h "$a/renamed")" = 2 ] || fail "the link count is not seen on A"
[ "$(readlink "$a/link")" = renamed ] || fail "the symlink is not seen on A"
note "edits, rename, links: seen at once, open files included"
python3 scripts/demo_locks.py "$a/renamed" "$b/renamed" || fail "locks do not exclude across nodes"
note "an fcntl lock taken on A keeps B out; released, B gets it"
cp /bin/ls "$a/program"
"$b/program" -d "$b" >/dev/null || fail "a program written on A does not run on B"
note "a program copied in on A runs on B"

# ---------------------------------------------------------------- crash
say "6. Node A is killed in the middle of writing"
server=$("$braid" status --json | python3 -c \
  'import json,sys; print(next(m["pid"] for m in json.load(sys.stdin)["mounts"] if m["mount_point"] == sys.argv[1]))' "$a")
mkdir "$a/crash"
python3 scripts/demo_writer.py "$a/crash" "$work/acknowledged" 2>/dev/null &
writer=$!
sleep 2
kill -KILL "$server"
killed=$(date +%s.%N)
ls "$b/crash" >/dev/null && echo alive >"$b/crash/after" || fail "node B does not go on"
waited=$(python3 -c "import time; print(f'{time.time() - $killed:.2f}')")
wait "$writer" 2>/dev/null || true
"$braid" unmount --lazy "$a"
python3 -c "import sys; sys.exit(0 if $waited < 2 else 1)" || fail "node B needed $waited s"
python3 scripts/demo_writer.py --verify "$b/crash" "$work/acknowledged" || fail "an acknowledged write is lost"
note "node B went on after $waited s; $(wc -l <"$work/acknowledged") files fsynced on A are all there"
(cd "$b" && sha256sum --quiet -c "$work/big.sum") || fail "the large file was harmed"

say "7. Unmount and check"
"$braid" unmount "$b"
"$braid" check "${devices[@]}" || fail "the check found problems"

say "8. What each layer costs (sequential, 1 MiB, direct)"
ladder=(--size "$([ -n "${DEMO_SMALL:-}" ] && echo 256M || echo 1G)" --repeats "$([ -n "${DEMO_SMALL:-}" ] && echo 1 || echo 3)")
"$braid" bench ladder --dir "$work" --members 4 "${ladder[@]}"

say "Done in $((SECONDS - started)) s"
