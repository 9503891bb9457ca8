#!/usr/bin/env bash
# Makes the Debian package of a `braid` that is built, has lintian look at it, and makes a Debian system that has
# nothing but the essential packages and libiscsi: clean_system.sh PROGRAM FOLDER. The folder has `braid.deb` and `root`
# then, which package_test.sh and operator.sh copy. Root.
set -euo pipefail
program=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "$0")/.."

rm -rf --one-file-system "$folder/root" "$folder/braid.deb"
package=$(scripts/deb.sh "$program" "$folder" --fast)
lintian --allow-root --fail-on error "$package"
mv "$package" "$folder/braid.deb"
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
# The operator's disks are units of a target on this very host.
mmdebstrap --quiet --variant=minbase --include=libiscsi7 "$release" "$folder/root"
