#!/bin/sh
# Installs the launcher from SOURCE into DIR: its packages, their bytecode, the program that starts it, and in
# share/ the man page, the completions and a description of the packages (describe.sh). SOURCE is a checkout, or a
# directory with the files of docker/ and with wheels/, which has the launcher and the packages of both locks. The script
# runs in a build stage that is discarded, so it does not remove the system packages that it installs.
#
# pip installs the versions in requirements.lock, observe.lock and tools.lock from the index that it is configured for, and refuses
# a file whose hash is not in the lock.
#
# usage: install.sh SOURCE DIR
set -eu
umask 022
source=$1
dir=$2
# Time of all files, unless the build sets another.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600}
export SOURCE_DATE_EPOCH
# NVIDIA's images set it for the packages that jobs import, in other versions than ours.
unset PIP_CONSTRAINT
# A variable, because the pip of Ubuntu 22.04 refuses the option.
export PIP_ROOT_USER_ACTION=ignore

fail() {
  echo "error: $1" >&2
  exit 1
}

is_new_enough() {
  "$1" -IS -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# The system's Python comes first: users replace the one on PATH (conda install python=3.8), but not the system's.
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

# find_pip PYTHON: sets $pip to the pip of a new virtual environment, of this Python, of another Python, or of the
# distribution.
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

# pip_install DIR WHAT ...: installs into DIR, from SOURCE/wheels only if that exists.
pip_install() {
  into=$1
  shift
  [ ! -d "$source/wheels" ] || set -- --no-index --find-links "$source/wheels" "$@"
  # shellcheck disable=SC2086 # several words, none with a space
  $pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check --target "$into" "$@"
}

# Installs the package itself with the setuptools of tools.lock, from a copy because setuptools leaves files there.
install_launcher() {
  if [ -d "$source/wheels" ]; then
    pip_install "$dir/lib" --no-deps cluster-launcher
  else
    mkdir "$work/source"
    (cd "$source" && cp -R bin launcher cluster_launcher tools setup.cfg setup.py pyproject.toml README.md LICENSE "$work/source")
    (export PYTHONPATH="$work/tools" && pip_install "$dir/lib" --no-deps --no-build-isolation "$work/source")
  fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
found=$(find_python)
# By its real path, which contains the version: a Python that replaces it later has another path.
python=$("$found" -IS -c 'import os, sys; print(os.path.realpath(sys.executable))')
mkdir -p "$dir/bin"
find_pip "$python"
pip_install "$work/tools" --require-hashes --only-binary :all: --no-deps --requirement "$source/docker/tools.lock"
pip_install "$dir/lib" --require-hashes --only-binary :all: --requirement "$source/docker/requirements.lock"
# Programs and man pages of these packages, and an example of nvidia-ml-py.
rm -rf "$dir/lib/bin" "$dir/lib/share" "$dir/lib/example.py"
install_launcher
# The man page and the completions.
mv "$dir/lib/share" "$dir/share"
# A program and a metadata file, both with paths of this build stage.
rm -rf "$dir/lib/bin" "$dir"/lib/*.dist-info/direct_url.json
# They leave the packages' lists, too: their hashes differ from build to build.
sed -i '/direct_url\.json/d; /^\.\.\//d' "$dir"/lib/*.dist-info/RECORD
# The extra observe, which has wheels for these processors. The launcher finds its program, py-spy, in lib/bin.
case $(uname -m) in
x86_64 | aarch64)
  pip_install "$dir/lib" --require-hashes --only-binary :all: --requirement "$source/docker/observe.lock"
  ;;
esac
sed "s|@DIR@|$dir|" "$source/docker/launcher.py" >"$dir/launcher.py"
sed "s|@DIR@|$dir|; s|@PYTHON@|$python|g" "$source/docker/launcher.sh" >"$dir/bin/launcher"
chmod 755 "$dir/bin/launcher"
# Python never compares it with the sources: these do not change in an image, but some tools change their times.
for name in "$python" ${LAUNCHER_PYTHONS:-}; do
  "$name" -IS -m compileall -q --invalidation-mode unchecked-hash "$dir/lib"
done
sh "$source/docker/describe.sh" "$python" "$work/tools" "$dir/lib" "$dir/share/launcher"
# Describe the packages that docker/environments have installed in the base, too.
for packages in /opt/env/lib/python3*/site-packages; do
  [ ! -d "$packages" ] || sh "$source/docker/describe.sh" "$python" "$work/tools" "$packages" "$dir/share/env"
done
find "$dir" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
"$dir/bin/launcher" --version
