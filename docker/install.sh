#!/bin/sh
# Installs the launcher from SOURCE into DIR: its packages, their bytecode, and the program that starts it.
# SOURCE is a checkout, or has in wheels/ the launcher and all that it imports, and the files of docker/ beside.
# Runs in a stage of the build that is thrown away, so whatever it needs besides may stay lying about.
#
# usage: install.sh SOURCE DIR
set -eu
umask 022
source=$1
dir=$2
# Of all files, unless the build says another.
time=@${SOURCE_DATE_EPOCH:-1767225600}

fail() {
  echo "error: $1" >&2
  exit 1
}

is_new_enough() {
  "$1" -IS -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# The system's first: people change what is on PATH (conda install python=3.8), nobody changes that.
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

# install_packages PYTHON: by a pip of its own, that of the image, that of another Python, or that of the distribution.
install_packages() {
  venv=$(mktemp -d)
  if "$1" -I -m venv "$venv" >/dev/null 2>&1; then
    pip="$venv/bin/python -I -m pip"
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
  if [ -d "$source/wheels" ]; then
    set -- --no-index --find-links "$source/wheels" cluster-launcher
  else
    set -- "$source"
  fi
  # shellcheck disable=SC2086 # words, without spaces in any
  $pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
    --root-user-action ignore --target "$dir/lib" "$@"
}

found=$(find_python)
# By the name that says its version: what replaces it some day has another.
python=$("$found" -IS -c 'import os, sys; print(os.path.realpath(sys.executable))')
mkdir -p "$dir/bin"
install_packages "$python"
# Programs and pages of these packages and a note with the paths of this stage in them; an example of nvidia-ml-py.
rm -rf "$dir/lib/bin" "$dir/lib/share" "$dir/lib/example.py" "$dir"/lib/*.dist-info/direct_url.json
cp "$source/docker/launcher.py" "$dir/launcher.py"
sed "s|@PYTHON@|$python|g" "$source/docker/launcher.sh" >"$dir/bin/launcher"
chmod 755 "$dir/bin/launcher"
# Never looked at again: nobody changes a source in an image, and some tools give all of its files a new time.
"$python" -IS -m compileall -q --invalidation-mode unchecked-hash "$dir/lib"
find "$dir" -exec touch -d "$time" {} +
"$dir/bin/launcher" --version
