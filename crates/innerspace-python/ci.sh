#!/usr/bin/env bash
# Installs the package into a virtual environment of its own, and runs all tests: the two commands of README.md. Then it
# checks the annotations, and the stubs against the native module.
# One argument: the folder of the environment; by default one in the target folder, made anew. PYTHON is the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
# Absolute, since the last checks run in the package's folder.
environment=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/python-environment}")
rm -rf "$environment"
"${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet './crates/innerspace-python[test,check]'
"$environment/bin/python" -m pytest -q crates/innerspace-python
cd crates/innerspace-python
"$environment/bin/python" -m mypy --strict --cache-dir "$environment/mypy"
"$environment/bin/python" -m mypy.stubtest innerspace._native --mypy-config-file pyproject.toml \
    --allowlist stubtest-allowlist.txt --ignore-unused-allowlist
