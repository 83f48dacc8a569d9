#!/usr/bin/env bash
# Runs the checks for every change, in the environment that test.sh has made: ruff, mypy, the tests of plans and of
# single parts, but for those with random input and those that take a second. It takes 45 s on two cores; test.sh runs
# the other tests.
#
#   bash tools/quick.sh [ARGUMENT OF PYTEST ...]        e.g. -x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PWD/.venv/bin:$PATH
unset PYTHONDONTWRITEBYTECODE # with it each of pytest's workers would rewrite every module again

ruff check .
ruff format --check .
mypy
exec python -m pytest -m "not thorough and not slow and not hypothesis" -n "$(($(nproc) + 1))" --dist loadgroup -q "$@" \
  tests/unit tests/golden </dev/null
