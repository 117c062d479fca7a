#!/usr/bin/env bash
# Installs the package into a virtual environment of its own, and runs all tests: the two commands of README.md.
# One argument: the folder of the environment; by default one in the target folder, made anew.
set -euo pipefail
cd "$(dirname "$0")/../.."
environment=${1:-${CARGO_TARGET_DIR:-target}/python-environment}
rm -rf "$environment"
python3 -m venv "$environment"
"$environment/bin/pip" install --quiet './crates/innerspace-python[test]'
"$environment/bin/python" -m pytest -q crates/innerspace-python
