#!/usr/bin/env bash
# Every test. Mounted tests need root and /dev/fuse; they say so when they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$1"; }

step "format"
cargo fmt --all --check
step "lints"
cargo clippy --locked --workspace -- -D warnings
step "tidy"
cargo run -q --locked -p xtask -- tidy
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc -q --locked --workspace --no-deps
step "tests"
cargo run -q --locked -p xtask -- test
