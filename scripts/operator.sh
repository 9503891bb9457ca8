#!/usr/bin/env bash
# A day of an operator, with nothing but the commands of the manual pages: installs the package in a copy of the system
# that clean_system.sh has made, and runs operator_day.sh there: operator.sh FOLDER. Root.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/.."

work=$(mktemp -d)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT

printf '== a clean system\n'
cp -a "$folder/root" "$root"
cp "$folder/braid.deb" scripts/operator_day.sh "$root/"
# All processes end with the script.
unshare --mount --pid --fork --kill-child --propagation slave scripts/enter_system.sh "$root" /operator_day.sh
