#!/usr/bin/env bash
# The founding documents' experiments on this machine (docs/BENCHMARKING.md): every one that can run, with
# a verdict for each. About twelve minutes on two processors; the exit status is not 0 if something falls
# short or could not be measured.
#
#   scripts/seeds.sh [DIR]      into DIR (default: bench-results): seeds.json with every sample, seeds.html with the
#                               plots, seeds.csv, seeds.txt with the lines that are printed
#   WITHIN=1080                 seconds for all of it, about; what would take longer has fewer rounds
#   REPEATS=6 BUDGET=240        rounds of an experiment at most (six give an interval); seconds of one
#   SIZE=256M                   bytes of each phase
#   BACKING=/dev/shm            where the devices' files are made: a RAM file system, 3 GB free
#   ONLY=S4,S2.13               only these
set -euo pipefail
cd "$(dirname "$0")/.."

braid=${BRAID:-$PWD/target/release/braid}
results=${1:-bench-results}
[ "$(id -u)" -eq 0 ] || { echo "mounts, loop devices and dropping caches need root" >&2; exit 1; }
[ -x "$braid" ] || { echo "build first: make build" >&2; exit 1; }
mkdir -p "$results"
# Nothing of an earlier run is taken for this one's.
rm -f "$results"/seeds.{json,html,csv,txt}

words=(--dir "${BACKING:-/dev/shm}" --size "${SIZE:-256M}" --repeats "${REPEATS:-6}")
words+=(--budget "${BUDGET:-240}" --within "${WITHIN:-1080}" --out "$results/seeds.json")
[ -z "${ONLY:-}" ] || words+=(--only "$ONLY")
status=0
"$braid" bench seeds "${words[@]}" | tee -i "$results/seeds.txt" || status=$?
if [ -s "$results/seeds.json" ]; then
  "$braid" bench report "$results/seeds.json" --html "$results/seeds.html" --csv "$results/seeds.csv" || status=$?
fi
exit "$status"
