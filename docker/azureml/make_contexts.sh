#!/bin/sh
# Makes the contexts that environment.yml and environment-tensorflow.yml name: all that their builds need of us.
#
#     sh docker/azureml/make_contexts.sh [DIR]       DIR: build/azureml of this checkout unless given
#
# PYTHON (default python3) has pip; the wheels of the launcher and of what it imports are any platform's.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
dir=${1:-$checkout/build/azureml}

# In each context: what docker/install.sh, which makes every image, wants as its SOURCE.
launcher=$dir/launcher
rm -rf "$launcher"
mkdir -p "$launcher/docker"
(cd "$checkout/docker" && cp install.sh launcher.py launcher.sh "$launcher/docker")
# From a copy: setuptools leaves its own build folder where it builds, and packs again what lies in there.
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
(cd "$checkout" && cp -R bin launcher setup.cfg setup.py pyproject.toml README.md LICENSE "$source")
"${PYTHON:-python3}" -m pip wheel --quiet --wheel-dir "$launcher/wheels" "$source"

for requirements in "$here"/requirements/*.txt; do
  context=$dir/$(basename "$requirements" .txt)
  rm -rf "$context"
  mkdir "$context"
  cp -R "$launcher" "$here/Dockerfile" "$context"
  cp "$requirements" "$context/requirements.txt"
done
rm -rf "$launcher"
