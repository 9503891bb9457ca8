#!/usr/bin/env bash
# Makes the Debian package of a `braid` that is built: deb.sh PROGRAM FOLDER [OPTION OF cargo deb]...
# Prints where the package is.
set -euo pipefail
program=$(realpath "$1")
folder=$(realpath "$2")
cd "$(dirname "$0")/.."

root=target/package
rm -rf "$root"
# Puts files into a folder of the package, readable by all.
put() { install -D -m 644 -t "$root/$1" "${@:2}"; }

install -D -m 755 "$program" "$root/usr/bin/braid"
strip "$root/usr/bin/braid"
mkdir -p "$root/usr/sbin"
for name in mount.braid mount.fuse.braid umount.braid umount.fuse.braid fsck.braid mkfs.braid; do
  ln -s ../bin/braid "$root/usr/sbin/$name"
done

made=target/package-made
rm -rf "$made"
"$program" generate "$made"
put usr/share/man/man8 "$made"/man/*.8 packaging/man/*.8
put usr/share/man/man7 packaging/man/*.7
ln -s braid-mount.8.gz "$root/usr/share/man/man8/mount.braid.8.gz"
ln -s braid-mount.8.gz "$root/usr/share/man/man8/mount.fuse.braid.8.gz"
ln -s braid-unmount.8.gz "$root/usr/share/man/man8/umount.braid.8.gz"
ln -s braid-unmount.8.gz "$root/usr/share/man/man8/umount.fuse.braid.8.gz"
gzip -9n "$root"/usr/share/man/man*/*.[78]
install -D -m 644 "$made/completions/braid.bash" "$root/usr/share/bash-completion/completions/braid"
put usr/share/zsh/vendor-completions "$made/completions/_braid"
put usr/share/fish/vendor_completions.d "$made/completions/braid.fish"

put usr/lib/systemd/system packaging/systemd/*
put usr/lib/udev/rules.d packaging/udev/*
put usr/share/lintian/overrides packaging/debian/overrides/braid
put usr/share/doc/braid README.md docs/*.md packaging/debian/copyright
put usr/share/doc/braid/examples packaging/grafana/*
# What changed is in the project's own file; Debian wants its own form of one beside it.
version=$("$program" --version)
changed=$(git log -1 --format=%cD 2>/dev/null || date -R)
gzip -9nc CHANGELOG.md >"$root/usr/share/doc/braid/CHANGELOG.md.gz"
gzip -9nc >"$root/usr/share/doc/braid/changelog.gz" <<END
braid (${version#braid }) unstable; urgency=medium

  * See CHANGELOG.md.gz.

 -- The Braid authors <braid@localhost>  $changed
END
cargo deb -q -p braid-cli --no-build --no-strip --output "$folder/" "${@:3}"
