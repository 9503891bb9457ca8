#!/usr/bin/env bash
# Makes the RPM package of a `braid` that is built: rpm.sh PROGRAM FOLDER. Prints where the package is.
set -euo pipefail
program=$(realpath "$1")
folder=$(realpath "$2")
cd "$(dirname "$0")/.."

version=$("$program" --version)
version=${version#braid }
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p "$made/SOURCES"
# What the package has besides the program.
tar -czf "$made/SOURCES/braid-$version.tar.gz" --transform "s,^,braid-$version/," \
  README.md CHANGELOG.md LICENSE docs/*.md packaging
# A stripped copy: rpmbuild changes the program that it packs.
strip -o "$made/braid" "$program"
# Of a Debian system's packages rpm knows nothing. What it does to files by itself is done.
rpmbuild --quiet --nodeps -bb --define "__os_install_post %{nil}" --define "_topdir $made" --define "program $made/braid" \
  --define "braid_version $version" packaging/rpm/braid.spec
find "$made/RPMS" -name '*.rpm' -exec cp -t "$folder" {} +
(cd "$made/RPMS" && find . -name '*.rpm' -printf "$folder/%f\n")
