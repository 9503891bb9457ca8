#!/usr/bin/env bash
# Whether two versions of Braid can have a pool mounted at the same time, as while the hosts of a pool are upgraded
# one after the other: a node of each, on this host, on a pool of two files. Leaves nothing behind. Needs root.
#
#   scripts/upgrade-test.sh OLD NEW     the two programs
#   SIZE=256M                           of each file
#   KEEP=1                              keeps the files and the logs
#
# If their formats differ, each must refuse the other's pool, and name both formats.
# Exit status: 0 all is as promised (docs/GUIDE.md, "Upgrade"); 1 it is not; 2 it could not be tested.
set -uo pipefail

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -eq 2 ] || usage
old=$(realpath -- "$1") new=$(realpath -- "$2")
for program in "$old" "$new"; do
  [ -x "$program" ] || { echo "$program: no program" >&2; exit 2; }
done
[ "$(id -u)" -eq 0 ] || { echo "mounts need root" >&2; exit 2; }
[ -e /dev/fuse ] || { echo "mounts need /dev/fuse" >&2; exit 2; }

work=$(mktemp -d "${TMPDIR:-/tmp}/braid-upgrade.XXXXXX")
a=$work/a b=$work/b
disks=("$work/disk0" "$work/disk1")
mkdir "$a" "$b"
failures=0
# The processes of the nodes: no other is ever killed.
node_a="" node_b=""

step() { printf '\n== %s\n' "$*"; }
good() { printf 'ok    %s\n' "$*"; }
bad() { printf 'FAIL  %s\n' "$*"; failures=$((failures + 1)); }
# expect WHAT COMMAND...: it must succeed within a minute.
expect() {
  local what=$1 said; shift
  if said=$(timeout 60 "$@" 2>&1); then good "$what"; else bad "$what: ${said:-no answer within 60 s} ($*)"; return 1; fi
}
same() { [ "$(sha256sum <"$1")" = "$(sha256sum <"$2")" ]; }
mounted() { mountpoint -q "$1"; }

cleanup() {
  local dir pid
  for dir in "$a" "$b"; do
    ! mounted "$dir" || timeout 60 "$new" unmount "$dir" 2>/dev/null || umount -l "$dir" 2>/dev/null
  done
  for pid in $node_a $node_b; do kill -KILL "$pid" 2>/dev/null; done
  if [ -n "${KEEP:-}" ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap cleanup EXIT
trap 'exit 2' INT TERM
finish() {
  if [ "$failures" -eq 0 ]; then printf '\nRESULT: %s\n' "$1"; exit 0; fi
  printf '\nRESULT: %s of the steps above FAILED\n' "$failures"
  exit 1
}

# start PROGRAM DIR: a node in the foreground, so that its process is known; its number is in $started.
start() {
  local program=$1 dir=$2 n
  "$program" mount -f "${disks[@]}" "$dir" -o "log=$dir.log,io_timeout=2" >"$dir.out" 2>&1 &
  started=$!
  for n in $(seq 300); do
    ! mounted "$dir" || { timeout 10 stat "$dir/." >/dev/null 2>&1 && return 0; }
    kill -0 "$started" 2>/dev/null || break
    sleep 0.2
  done
  cat "$dir.out"
  return 1
}
start_a() { start "$1" "$a"; local status=$?; node_a=$started; return $status; }
start_b() { start "$1" "$b"; local status=$?; node_b=$started; return $status; }
# crash PID DIR: as a power cut ends a node.
crash() {
  kill -KILL "$1"; wait "$1" 2>/dev/null
  umount -l "$2" 2>/dev/null
}
# leave PROGRAM DIR PID
leave() {
  expect "$4 leaves in order" "$1" unmount "$2" || return 1
  wait "$3" || { bad "the process of $4 ended with $?"; return 1; }
}

format_of() { timeout 20 "$1" version 2>/dev/null | sed -n 's/^file system format //p'; }
old_format=$(format_of "$old") new_format=$(format_of "$new")
step "versions"
printf 'OLD   %s, format %s\n' "$(timeout 20 "$old" version | head -1)" "$old_format"
printf 'NEW   %s, format %s\n' "$(timeout 20 "$new" version | head -1)" "$new_format"
[ -n "$old_format" ] && [ -n "$new_format" ] || { echo "\`version\` does not name a format" >&2; exit 2; }

make_pool() {
  rm -f "${disks[@]}"
  truncate -s "${SIZE:-256M}" "${disks[@]}"
  timeout 60 "$1" create upgrade --nodes 4 "${disks[@]}" 2>&1
}

# refuses WHO PROGRAM: a pool of the other format.
refuses() {
  local who=$1 program=$2 command said status before
  before=$(cat "${disks[@]}" | sha256sum)
  for command in mount check status; do
    local words=("$command" "${disks[@]}")
    [ "$command" != mount ] || words+=("$a")
    said=$(timeout 60 "$program" "${words[@]}" 2>&1); status=$?
    if [ "$status" -eq 0 ]; then
      bad "$command by $who: takes a pool of another format"
    elif [[ $said != *"version $old_format"* || $said != *"version $new_format"* ]]; then
      bad "$command by $who: refused, but it does not name formats $old_format and $new_format: $said"
    else
      good "$command by $who: refused clearly, exit status $status: $said"
    fi
    ! mounted "$a" || umount -l "$a"
  done
  [ "$(cat "${disks[@]}" | sha256sum)" = "$before" ] && good "$who has changed nothing" || bad "$who has changed the pool"
}
if [ "$old_format" != "$new_format" ]; then
  step "the formats differ: each refuses the other's pool"
  if said=$(make_pool "$old"); then refuses NEW "$new"; else bad "create by OLD: $said"; fi
  if said=$(make_pool "$new"); then refuses OLD "$old"; else bad "create by NEW: $said"; fi
  finish "these versions refuse each other's pools: copy the files, there is no conversion"
fi


step "a pool made by OLD, mounted by both"
give_up() { bad "$1"; finish ""; }
said=$(make_pool "$old") || give_up "create by OLD: $said"
start_a "$old" || give_up "mount by OLD: $(cat "$a.out")"
start_b "$new" || give_up "mount by NEW beside OLD: $(cat "$b.out")"
good "both are mounted"

# put FILE: a new file with contents of its own, durable.
put() { head -c 1M /dev/urandom >"$1" && sync "$1"; }
many() {
  local n
  for n in $(seq 200); do echo "$2 $n" >"$1/many/$2$n" || return 1; done
}
both_write_many() {
  many "$a" old & local first=$!
  many "$b" new && wait "$first" &&
    [ "$(ls "$a/many" | wc -l)" -eq 400 ] && [ "$(ls "$b/many" | wc -l)" -eq 400 ] &&
    [ "$(cat "$b"/many/old* | wc -l)" -eq 200 ] && [ "$(cat "$a"/many/new* | wc -l)" -eq 200 ]
}
# In a shell of their own these have the bound of `expect`.
export -f put same many both_write_many
export a b
run() { expect "$1" bash -c "$2"; }

step "each sees what the other does"
run "NEW reads what OLD writes" 'put "$a/of_old" && same "$a/of_old" "$b/of_old"'
run "OLD reads what NEW writes" 'put "$b/of_new" && same "$b/of_new" "$a/of_new"'
run "what OLD overwrites and appends is read by NEW" \
  'echo x | dd of="$a/of_new" bs=1 seek=5000 conv=notrunc status=none && echo end >>"$a/of_new" && same "$a/of_new" "$b/of_new"'
run "NEW renames, OLD finds it" 'mv "$b/of_old" "$b/renamed" && [ ! -e "$a/of_old" ] && same "$a/renamed" "$b/renamed"'
run "OLD renames over a file, NEW finds it" 'put "$a/other" && mv "$a/other" "$a/renamed" && [ ! -e "$b/other" ] && same "$a/renamed" "$b/renamed"'
run "directories, links, modes and times" \
  'mkdir -p "$a/dir/below" && ln "$b/renamed" "$b/dir/hard" && ln -s below "$a/dir/soft" && chmod 640 "$b/dir/hard" &&
   touch -d @1000000000 "$a/renamed" && [ "$(stat -c "%h %a %Y" "$b/dir/hard")" = "2 640 1000000000" ] &&
   [ "$(readlink "$b/dir/soft")" = below ] && rmdir "$b/dir/below" && [ ! -e "$a/dir/below" ]'
run "both write into one directory at once" 'mkdir "$a/many" && both_write_many'
run "OLD truncates and removes, NEW finds it" \
  'truncate -s 100 "$a/of_new" && [ "$(stat -c %s "$b/of_new")" = 100 ] && rm "$a/of_new" && [ ! -e "$b/of_new" ]'

step "locks of programs"
lock_keeps_out() {
  local here=$1 there=$2 what=$3 held status
  exec {held}>"$here/lock"
  timeout 60 flock -x "$held" || { bad "$what: the lock is not to be had"; exec {held}>&-; return; }
  timeout 60 flock -n "$there/lock" true; status=$?
  exec {held}>&-
  if [ "$status" -eq 1 ]; then good "$what"; else bad "$what: flock ended with $status"; return; fi
  expect "... until it is given up" flock -w 30 "$there/lock" true
}
lock_keeps_out "$a" "$b" "a flock of OLD keeps NEW out"
lock_keeps_out "$b" "$a" "a flock of NEW keeps OLD out"

step "a feature that one of them may not know"
# new_feature: NEW sets a property of the pool. Then OLD knows properties, too, or NEW refuses for its sake.
new_feature() {
  local said status
  timeout 20 "$new" set --help >/dev/null 2>&1 || { echo "      NEW has no \`set\`"; return; }
  said=$(timeout 60 "$new" set "$b" comment=upgrade 2>&1); status=$?
  if [ "$status" -eq 0 ]; then
    good "NEW sets a property of the pool"
  elif [[ $said == *feature*properties* ]]; then
    good "NEW refuses to, for OLD's sake: $said"
  else
    bad "NEW cannot set a property, exit status $status: $said"
  fi
  run "OLD goes on" 'put "$a/with_property" && same "$a/with_property" "$b/with_property"'
  [ "$status" -ne 0 ] || expect "NEW takes the property away" "$new" set "$b" comment=
}
new_feature

step "one dies, the other recovers it"
export work
run "OLD works in a directory" 'mkdir "$a/by_old" && put "$a/by_old/durable" && cp "$a/by_old/durable" "$work/copy" && echo x >"$a/by_old/not_yet"'
crash "$node_a" "$a"; node_a=""
run "NEW recovers OLD: what was durable is there" 'same "$b/by_old/durable" "$work/copy"'
run "... and what OLD had locked can be changed" 'put "$b/by_old/after" && mv "$b/by_old/durable" "$b/by_old/moved" && ls "$b/by_old" >/dev/null'
start_a "$old" || give_up "mount by OLD after that: $(cat "$a.out")"
run "OLD is back, and works" 'same "$a/by_old/moved" "$work/copy" && put "$a/back"'
run "NEW works in a directory" 'mkdir "$b/by_new" && put "$b/by_new/durable" && cp "$b/by_new/durable" "$work/copy" && echo x >"$b/by_new/not_yet"'
crash "$node_b" "$b"; node_b=""
run "OLD recovers NEW: what was durable is there" 'same "$a/by_new/durable" "$work/copy"'
run "... and what NEW had locked can be changed" 'put "$a/by_new/after" && mv "$a/by_new/durable" "$a/by_new/moved" && ls "$a/by_new" >/dev/null'
start_b "$new" || give_up "mount by NEW after that: $(cat "$b.out")"
run "NEW is back, and works" 'same "$b/by_new/moved" "$work/copy" && put "$b/back"'

step "OLD leaves, NEW goes on"
leave "$old" "$a" "$node_a" OLD; node_a=""
run "OLD has left, NEW goes on" 'put "$b/alone" && rm "$b/back" && [ "$(cat "$b"/many/* | wc -l)" -eq 400 ]'
leave "$new" "$b" "$node_b" NEW; node_b=""
# checked WHO PROGRAM
checked() {
  local said status
  said=$(timeout 120 "$2" check "${disks[@]}" 2>&1); status=$?
  if [ "$status" -eq 0 ] && [[ $said == *clean* ]]; then good "check by $1 is clean"; else bad "check by $1: exit status $status: $said"; fi
}
checked NEW "$new"
checked OLD "$old"

step "features of the format"
pool=${disks[0]}:${disks[1]}
# features WHO PROGRAM
features() {
  local said
  if ! timeout 20 "$2" upgrade --help >/dev/null 2>&1; then echo "      $1 has no \`upgrade\`"; return; fi
  if said=$(timeout 60 "$2" upgrade --list "$pool" 2>&1); then
    good "$1 lists them; the pool uses:$(awk '$4 == "yes" { printf " %s", $1; n++ } END { if (!n) printf " none" }' <<<"$said")"
  else
    bad "upgrade --list by $1: $said"
  fi
}
features OLD "$old"
features NEW "$new"
# With a feature that only one of them knows the other must refuse the pool, and take it again without.
# refused_with WHO PROGRAM BY PROGRAM
refused_with() {
  local who=$1 program=$2 by=$3 setter=$4 said status
  timeout 20 "$setter" set --help >/dev/null 2>&1 || { echo "      $by has no \`set\`"; return; }
  expect "$by sets a property of the pool" "$setter" set "$pool" comment=upgrade || return
  said=$(timeout 60 "$program" check "${disks[@]}" 2>&1); status=$?
  if [ "$status" -eq 0 ]; then
    good "$who knows properties, too"
  elif [[ $said == *feature* ]]; then
    good "$who refuses the pool clearly, exit status $status: $said"
  else
    bad "$who refuses the pool, exit status $status, and does not say that it is a feature: $said"
  fi
  expect "$by takes the property away" "$setter" set "$pool" comment= || return
  checked "$who" "$program"
}
refused_with OLD "$old" NEW "$new"
refused_with NEW "$new" OLD "$old"

finish "these versions work together on one pool"
