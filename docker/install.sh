#!/bin/sh
# Installs the launcher from SOURCE into DIR: its packages, their bytecode, the program that starts it, and in
# share/ what all of that is (describe.sh). SOURCE is a checkout; or it has the files of docker/, and in wheels/ the
# launcher and the packages of both locks. Runs in a stage of the build that is thrown away, so what else it needs
# may stay lying about.
#
# Of each package pip takes the version in requirements.lock or tools.lock, from the index that it is set to, and
# refuses a file whose hash is not there.
#
# usage: install.sh SOURCE DIR
set -eu
umask 022
source=$1
dir=$2
# Of all files, unless the build says another.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600}
export SOURCE_DATE_EPOCH
# NVIDIA's images set it, for what jobs import: other versions than ours.
unset PIP_CONSTRAINT
# As an option it would be an error for the pip of Ubuntu 22.04.
export PIP_ROOT_USER_ACTION=ignore

fail() {
  echo "error: $1" >&2
  exit 1
}

is_new_enough() {
  "$1" -IS -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# The system's first: people change what is on PATH (conda install python=3.8), and leave that alone.
find_python() {
  if [ -n "${LAUNCHER_PYTHON:-}" ]; then
    is_new_enough "$LAUNCHER_PYTHON" || fail "LAUNCHER_PYTHON=$LAUNCHER_PYTHON is no Python 3.10 or newer"
    echo "$LAUNCHER_PYTHON"
    return
  fi
  for name in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if is_new_enough "$name"; then
      echo "$name"
      return
    fi
  done
  fail "no Python 3.10 or newer on PATH: take another BASE_IMAGE, or name one by --build-arg LAUNCHER_PYTHON=PATH"
}

# find_pip PYTHON: one of its own, that of the image, that of another Python, or that of the distribution.
find_pip() {
  if "$1" -I -m venv "$work/venv" >/dev/null 2>&1; then
    pip="$work/venv/bin/python -I -m pip"
  elif "$1" -I -m pip --version >/dev/null 2>&1; then
    pip="$1 -I -m pip"
  elif python3 -I -m pip --python "$1" --version >/dev/null 2>&1; then
    pip="python3 -I -m pip --python $1"
  else
    command -v apt-get >/dev/null || fail "$1 has neither venv nor pip, and there is no apt-get to install one"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv python3-pip
    pip="$1 -I -m pip"
  fi
}

# pip_install DIR WHAT ...: from SOURCE/wheels alone if it is there.
pip_install() {
  into=$1
  shift
  [ ! -d "$source/wheels" ] || set -- --no-index --find-links "$source/wheels" "$@"
  # shellcheck disable=SC2086 # words, without spaces in any
  $pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check --target "$into" "$@"
}

# The package itself, by the setuptools of tools.lock; from a copy, because setuptools leaves files where it builds.
install_launcher() {
  if [ -d "$source/wheels" ]; then
    pip_install "$dir/lib" --no-deps cluster-launcher
  else
    mkdir "$work/source"
    (cd "$source" && cp -R bin launcher tools setup.cfg setup.py pyproject.toml README.md LICENSE "$work/source")
    (export PYTHONPATH="$work/tools" && pip_install "$dir/lib" --no-deps --no-build-isolation "$work/source")
  fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
found=$(find_python)
# By the name that says its version: what replaces it some day has another.
python=$("$found" -IS -c 'import os, sys; print(os.path.realpath(sys.executable))')
mkdir -p "$dir/bin"
find_pip "$python"
pip_install "$work/tools" --require-hashes --only-binary :all: --no-deps --requirement "$source/docker/tools.lock"
pip_install "$dir/lib" --require-hashes --only-binary :all: --requirement "$source/docker/requirements.lock"
# Programs and pages of these packages; an example of nvidia-ml-py.
rm -rf "$dir/lib/bin" "$dir/lib/share" "$dir/lib/example.py"
install_launcher
# The man page and the completions.
mv "$dir/lib/share" "$dir/share"
# A program and a note, both with the paths of this stage.
rm -rf "$dir/lib/bin" "$dir"/lib/*.dist-info/direct_url.json
sed "s|@DIR@|$dir|" "$source/docker/launcher.py" >"$dir/launcher.py"
sed "s|@DIR@|$dir|; s|@PYTHON@|$python|g" "$source/docker/launcher.sh" >"$dir/bin/launcher"
chmod 755 "$dir/bin/launcher"
# Never looked at again: no source in an image changes, and some tools give all of its files a new time.
"$python" -IS -m compileall -q --invalidation-mode unchecked-hash "$dir/lib"
sh "$source/docker/describe.sh" "$python" "$work/tools" "$dir/lib" "$dir/share/launcher"
# What docker/environments have put into the base.
for packages in /opt/env/lib/python3*/site-packages; do
  [ ! -d "$packages" ] || sh "$source/docker/describe.sh" "$python" "$work/tools" "$packages" "$dir/share/env"
done
find "$dir" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
"$dir/bin/launcher" --version
