#!/usr/bin/env bash
# Installs what building, testing, packaging and the demo need and this machine lacks: Debian packages, and cargo-deb.
set -euo pipefail

declare -A package_of=(
  [cc]=gcc [make]=make [fusermount3]=fuse3 [mkfs.xfs]=xfsprogs [losetup]=mount
  [mkfs.ext4]=e2fsprogs [mkfs.btrfs]=btrfs-progs
  [git]=git [iscsi-test-cu]=libiscsi-bin [sqlite3]=sqlite3 [python3]=python3 [tar]=tar [flock]=util-linux
  [etcd]=etcd-server [chromium]=chromium [ip]=iproute2 [setfacl]=acl [nsenter]=util-linux
  [lintian]=lintian [mmdebstrap]=mmdebstrap [dpkg-shlibdeps]=dpkg-dev [rpmbuild]=rpm [systemd-analyze]=systemd
  [ganesha.nfsd]=nfs-ganesha [nfs-cp]=libnfs-utils [promtool]=prometheus
)
missing=()
for command in "${!package_of[@]}"; do
  PATH=$PATH:/sbin:/usr/sbin command -v "$command" >/dev/null 2>&1 || missing+=("${package_of[$command]}")
done
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
# Loaded when an iscsi:// device is opened.
PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep libiscsi.so.7 >/dev/null || missing+=(libiscsi7)

# Makes the Debian package. Its own debug build takes half a minute; packing is left to xz.
if ! "${CARGO:-cargo}" deb --version >/dev/null 2>&1; then
  echo "installing: cargo-deb"
  "${CARGO:-cargo}" install -q --locked --debug --no-default-features cargo-deb
fi
# A Python module, for the tests of ours.
[ -e /usr/lib/python3/dist-packages/fsspec ] || missing+=(python3-fsspec)
# The part of NFS-Ganesha that serves mounted file systems is no command.
compgen -G '/usr/lib/*/ganesha/libfsalvfs.so' >/dev/null || missing+=(nfs-ganesha-vfs)
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

echo "installing: ${missing[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "not root, and no sudo: install ${missing[*]} yourself" >&2; exit 1; }
  sudo=(sudo)
fi
"${sudo[@]}" apt-get update -q >/dev/null
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
# Debian starts servers at once, on their usual ports; nothing here needs them.
for server in nfs-ganesha prometheus; do
  case " ${missing[*]} " in
    *" $server "*) if [ -d /run/systemd/system ]; then "${sudo[@]}" systemctl disable -q --now "$server" || true; fi ;;
  esac
done
