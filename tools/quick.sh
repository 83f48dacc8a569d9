#!/usr/bin/env bash
# What to run after every change, in the environment that test.sh has made: ruff, mypy, the tests of plans and of
# parts, and a core of real processes. Two minutes on two cores; what it leaves out is test.sh's.
#
#   bash tools/quick.sh [ARGUMENT OF PYTEST ...]        e.g. -x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PWD/.venv/bin:$PATH
unset PYTHONDONTWRITEBYTECODE # with it each of pytest's workers rewrites every module again

ruff check .
ruff format --check .
mypy
exec python -m pytest -m "quick and not thorough" --hypothesis-profile quick -n "$(($(nproc) + 1))" --dist loadgroup -q "$@" \
  tests/unit tests/golden tests/fuzz tests/process tests/cluster </dev/null
