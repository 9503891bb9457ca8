#!/usr/bin/env bash
# The tests of the Python package: builds the module and the command, and runs the programs of crates/python/tests on
# pools on files. Words go to the test program, as the name of a test. BRAID_PYTHON=VENV/bin/python takes another
# interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build -q --locked -p braid-cli
cargo test -q --locked -p braid-python --test python -- "$@"
