#!/bin/sh
# Makes the build contexts that environment.yml and environment-tensorflow.yml name.
#
#     sh docker/azureml/make_contexts.sh [DIR]       DIR: build/azureml of this checkout unless given
#
# PYTHON (default python3) must have pip. All wheels are for any Python, because the image may have another one; those
# of observe.lock are for x86_64 and aarch64, all others for any platform.
# Their hashes are checked here, and again in the image. requirements.txt lists the packages that the training imports:
# it is the lock of the environment of the same name.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
dir=${1:-$checkout/build/azureml}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
for name in pytorch tensorflow; do
  [ ! -e "$dir/$name" ] || [ -d "$dir/$name/launcher/wheels" ] || {
    echo "error: $dir/$name exists, and is no build context: name another DIR" >&2
    exit 64
  }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# In each context: the SOURCE for docker/install.sh, which installs the launcher in every image.
launcher=$work/launcher
mkdir -p "$launcher/docker"
(cd "$checkout/docker" && cp install.sh describe.sh launcher.py launcher.sh requirements.lock observe.lock tools.lock "$launcher/docker")
pip() { "${PYTHON:-python3}" -m pip "$@" --quiet --disable-pip-version-check; }
pip download --dest "$launcher/wheels" --no-deps --only-binary :all: --platform any --python-version 3.10 \
  --require-hashes --requirement "$checkout/docker/requirements.lock" --requirement "$checkout/docker/tools.lock"
for machine in x86_64 aarch64; do
  pip download --dest "$launcher/wheels" --no-deps --only-binary :all: --python-version 3.10 --platform any \
    --platform "manylinux2014_$machine" --platform "manylinux_2_17_$machine" --platform "manylinux_2_28_$machine" \
    --require-hashes --requirement "$checkout/docker/observe.lock"
done
# From a copy: setuptools leaves a build directory in its source, and packs old files from it into the next wheel.
mkdir "$work/source"
(cd "$checkout" && cp -R bin launcher cluster_launcher tools setup.cfg setup.py pyproject.toml README.md LICENSE "$work/source")
pip install --target "$work/tools" --no-deps --no-index --find-links "$launcher/wheels" \
  --require-hashes --requirement "$checkout/docker/tools.lock"
PYTHONPATH=$work/tools "${PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$launcher/wheels" "$work/source"

for name in pytorch tensorflow; do
  context=$dir/$name
  rm -rf "$context"
  mkdir "$context"
  cp -R "$launcher" "$here/Dockerfile" "$context"
  cp "$checkout/docker/environments/$name.lock" "$context/requirements.txt"
done
