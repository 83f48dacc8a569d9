#!/usr/bin/env bash
# Writes the lock files of docker/: the version of every package that is installed there, and the hashes of its files.
#
#   bash tools/lock.sh [OPTION OF UV PIP COMPILE ...]      --upgrade: the newest versions (make lock)
#
# Without an option a version is kept as long as it satisfies the requirements. The index is PyPI, or the one in
# UV_DEFAULT_INDEX: a mirror has the same hashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
options=("$@")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work"
"$work/bin/python" -m pip install --quiet uv==0.13.9

# lock FILE OPTION ... <REQUIREMENTS: writes a lock for Python 3.10, the oldest that we support, and newer ones.
lock() {
  local file=docker/$1
  shift
  echo "$file" >&2
  "$work/bin/uv" pip compile --quiet --no-config --python-version 3.10 --generate-hashes --no-annotate \
    --custom-compile-command "make lock" --output-file "$file" "$@" "${options[@]}" - >/dev/null
}

# The packages that the launcher imports, and those that build its package and list its contents. All are wheels for
# any platform, and a lock for Python 3.10 also holds for later Pythons: tests/process/test_supply.py checks that.
"$work/bin/python" - <<'END' | lock requirements.lock
import configparser

setup = configparser.ConfigParser()
setup.read("setup.cfg")
print(setup["options"]["install_requires"])
END
# What the launcher uses if it is there. Two of these have a wheel for each platform, for any Python.
"$work/bin/python" - <<'END' | lock observe.lock
import configparser

setup = configparser.ConfigParser()
setup.read("setup.cfg")
print(setup["options.extras_require"]["observe"])
END
# With the packages that setup.py needs. Without those that only the validation of CycloneDX imports: they are
# compiled for each Python.
printf '%s\n' lxml jsonschema referencing >"$work/without.txt"
{
  printf '%s\n' setuptools cyclonedx-bom
  sed -n 's/^NEEDS = \[\(.*\)\]$/\1/p' setup.py | tr -d '"'
} | lock tools.lock --excludes "$work/without.txt"

# The environments, for all Pythons and platforms by means of markers.
options+=(--universal)
printf '%s\n' torch==2.13.0 numpy scikit-learn | lock environments/pytorch.lock
printf '%s\n' 'tensorflow[and-cuda]==2.21.0' | lock environments/tensorflow.lock
printf '%s\n' mpi4py | lock environments/mpi.lock
printf '%s\n' setuptools wheel packaging 'cmake<4' cffi pyyaml psutil cloudpickle | lock environments/compile.lock
# The base already has these two, in versions that belong together.
printf '%s\n' torch numpy >"$work/without.txt"
printf '%s\n' deepspeed==0.19.8 | lock environments/deepspeed.lock --excludes "$work/without.txt"
printf '%s\n' horovod==0.28.1 | lock environments/horovod.lock
