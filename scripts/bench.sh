#!/usr/bin/env bash
# Measures this machine against the goals (docs/BENCHMARKING.md): RAM-backed files, throttled loop
# devices, XFS beside it. Prints one table; the exit status is not 0 if something falls short.
#
#   scripts/bench.sh [DIR]      all figures as JSON into DIR (default: bench-results)
#   SIZE=1G REPEATS=5           bytes moved per phase; repeats
#   MEMORY_SIZE=8G FILES=100000 what the mount streams and holds while its memory is measured
#   BACKING=/dev/shm            where the devices' files are made: a RAM file system
#   BENCH_DISK=/var/tmp         a directory on a disk, for what is read cold
#   ONLY="ladder4 meta"         only these of: ladder4 ladder2 ladder8 ladder1 file1 throttled throttled1
#                               throttled2 throttled3 buffered buffered-ram meta memory share
set -euo pipefail
cd "$(dirname "$0")/.."

braid=$PWD/target/release/braid
results=${1:-bench-results}
size=${SIZE:-1G} repeats=${REPEATS:-5}
memory_size=${MEMORY_SIZE:-8G} files=${FILES:-100000}
backing=${BACKING:-/dev/shm}
disk=${BENCH_DISK:-/var/tmp}
all="ladder4 ladder2 ladder8 ladder1 file1 throttled throttled1 throttled2 throttled3 buffered buffered-ram meta memory share"
only=${ONLY:-$all}

[ "$(id -u)" -eq 0 ] || { echo "mounts, loop devices and dropping caches need root" >&2; exit 1; }
[ -x "$braid" ] || { echo "build first: make build" >&2; exit 1; }
case "$(stat -f -c %T "$backing")" in
  tmpfs | ramfs) ;;
  *) echo "note: $backing is not in RAM; the goals are for RAM-backed devices" >&2 ;;
esac
mkdir -p "$results"
for suite in $all; do rm -f "$results/$suite.json"; done

# A suite that cannot run is a failure, not a pass.
measure() {
  local name=$1 where=$backing; shift
  [ "$name" != buffered ] || where=$disk
  case " $only " in *" $name "*) ;; *) return 0 ;; esac
  printf '== %s: braid bench %s\n' "$name" "$*" >&2
  "$braid" bench "$@" --dir "$where" --json >"$results/$name.json.part" &&
    mv "$results/$name.json.part" "$results/$name.json" ||
    { rm -f "$results/$name.json.part"; printf 'FAILED: %s\n' "$name" >&2; }
}

# Two mounts of one pool on this host. They end with this script, however that ends.
share=
leave_share() {
  local node
  [ -n "$share" ] || return 0
  for node in a b; do ! mountpoint -q "$share/$node" || "$braid" unmount "$share/$node" || return 0; done
  rm -rf "$share" "$results/share.json.part"
  share=
}
trap leave_share EXIT
measure_share() {
  case " $only " in *" share "*) ;; *) return 0 ;; esac
  share=$(mktemp -d "$backing/braid-share.XXXXXX")
  mkdir "$share/a" "$share/b"
  truncate -s 4G "$share/disk"
  chmod 600 "$share/disk"
  printf '== share: two mounts, braid bench share\n' >&2
  { "$braid" create "share-$$" "$share/disk" --nodes 4 >&2 &&
    "$braid" mount "$share/disk" "$share/a" && "$braid" mount "$share/disk" "$share/b" &&
    "$braid" bench share "a=$share/a" "b=$share/b" --repeats "$repeats" --json >"$results/share.json.part" &&
    mv "$results/share.json.part" "$results/share.json"; } || printf 'FAILED: share\n' >&2
  leave_share
}

measure ladder4   ladder --members 4 --size "$size" --repeats "$repeats"
measure ladder2   ladder --members 2 --size "$size" --repeats "$repeats"
measure ladder8   ladder --members 8 --size "$size" --repeats "$repeats"
measure ladder1   ladder --members 1 --loop --size "$size" --repeats "$repeats"
measure file1     ladder --members 1 --size "$size" --repeats "$repeats"
measure throttled ladder --members 4 --size "$size" --repeats "$repeats" --throttle 200000000
for n in 1 2 3; do
  measure throttled$n ladder --members $n --size "$size" --repeats "$repeats" --throttle 200000000
done
measure buffered  buffered --size "$size" --repeats "$repeats"
measure buffered-ram buffered --size "$size" --repeats "$repeats"
measure meta      meta --repeats "$repeats"
measure memory    memory --size "$memory_size" --files "$files" --repeats 1
measure_share

python3 scripts/bench_verdict.py "$results" $only
