#!/usr/bin/env bash
# Installs what building, testing, packaging and the demo need and this machine lacks: Debian packages, cargo-deb, and
# in target/python what fsspec's own tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

# fsspec with its own suite, which Debian's package lacks, and pytest, in an environment of their own. Where they cannot
# be fetched the file target/python/missing says so, and that test is skipped.
python_suite() {
  local venv=target/python
  if "$venv/bin/python" -c 'import fsspec.tests.abstract, pytest' 2>/dev/null; then return; fi
  rm -f "$venv/missing"
  mkdir -p target
  echo "installing: fsspec and pytest in $venv"
  if ! { timeout 120 python3 -m venv --clear "$venv" &&
    timeout 240 "$venv/bin/python" -m pip install -q --disable-pip-version-check --timeout 20 --retries 1 \
      fsspec==2026.9.0 pytest==9.2.0 &&
    "$venv/bin/python" -c 'import fsspec.tests.abstract, pytest'; } >/dev/null 2>&1; then
    mkdir -p "$venv"
    echo "fsspec and pytest could not be fetched from PyPI" >"$venv/missing"
    echo "not installed: fsspec and pytest; fsspec's own tests will be skipped" >&2
  fi
}

declare -A package_of=(
  [cc]=gcc [make]=make [fusermount3]=fuse3 [mkfs.xfs]=xfsprogs [losetup]=mount
  [mkfs.ext4]=e2fsprogs [mkfs.btrfs]=btrfs-progs
  [git]=git [iscsi-test-cu]=libiscsi-bin [sqlite3]=sqlite3 [python3]=python3 [tar]=tar [flock]=util-linux
  [etcd]=etcd-server [chromium]=chromium [ip]=iproute2 [setfacl]=acl [nsenter]=util-linux
  [lintian]=lintian [mmdebstrap]=mmdebstrap [dpkg-shlibdeps]=dpkg-dev [rpmbuild]=rpm [systemd-analyze]=systemd
  [ganesha.nfsd]=nfs-ganesha [nfs-cp]=libnfs-utils [promtool]=prometheus
  [udevadm]=udev [fish]=fish [zsh]=zsh
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
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -eq 0 ]; then
  python_suite
  exit 0
fi

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
python_suite
