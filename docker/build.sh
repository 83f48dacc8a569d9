#!/usr/bin/env bash
# Builds an image: first an environment, if one is named, then the launcher on top of it.
#
#   docker/build.sh TAG [ENVIRONMENT ...] [-- ARGUMENT OF docker build ...]
#
#   docker/build.sh mine/base -- --build-arg BASE_IMAGE=nvidia/cuda:12.8.1-runtime-ubuntu24.04
#   docker/build.sh mine/horovod pytorch horovod
#
# Environments are the files in docker/environments; each stands on the one before it. ENGINE=podman for podman.
set -euo pipefail
engine=${ENGINE:-docker}
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tag=${1:?the name of the image}
shift

environments=()
while (($#)) && [[ $1 != -- ]]; do
  [[ -f $checkout/docker/environments/$1.Dockerfile ]] || {
    echo "error: $1: expected one of $(cd "$checkout/docker/environments" && echo *.Dockerfile | sed 's/\.Dockerfile//g')" >&2
    exit 64
  }
  environments+=("$1")
  shift
done
(($# == 0)) || shift

base=()
for environment in "${environments[@]}"; do
  "$engine" build -f "$checkout/docker/environments/$environment.Dockerfile" "$@" "${base[@]}" \
    -t "$tag-$environment" "$checkout"
  base=(--build-arg "BASE_IMAGE=$tag-$environment")
done
"$engine" build -f "$checkout/docker/Dockerfile" "$@" "${base[@]}" \
  --build-arg "REVISION=$(git -C "$checkout" rev-parse HEAD 2>/dev/null || echo unknown)" -t "$tag" "$checkout"
