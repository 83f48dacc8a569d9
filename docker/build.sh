#!/usr/bin/env bash
# Builds an image: first an environment, if one is named, then the launcher on top of it.
#
#   docker/build.sh TAG [ENVIRONMENT ...] [-- ARGUMENT OF docker build ...]
#
#   docker/build.sh mine/base -- --build-arg BASE_IMAGE=nvidia/cuda:12.8.1-runtime-ubuntu24.04
#   docker/build.sh mine/horovod pytorch horovod
#
# Environments are the files in docker/environments; each is built on the one before it. ENGINE=podman uses podman.
#
# The digest of the base is looked up once, and all stages are built on that digest. The image's labels name it
# (org.opencontainers.image.base.name and .digest). A base without a digest gives a warning on standard error.
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

# given_base [ARGUMENT OF docker build ...]: prints the last BASE_IMAGE among the arguments.
given_base() {
  printf '%s\n' "$@" | sed -n 's/^\(--build-arg=\)\{0,1\}BASE_IMAGE=//p' | tail -n 1
}

# digest_of NAME: prints the digest of the image that the engine has, or pulls, by this name.
digest_of() {
  "$engine" image inspect "$1" >/dev/null 2>&1 || "$engine" pull --quiet "$1" >/dev/null || return
  "$engine" image inspect --format '{{index .RepoDigests 0}}' "$1" 2>/dev/null | sed 's/.*@//'
}

first=$checkout/docker/${environments[0]:+environments/${environments[0]}.}Dockerfile
name=$(given_base "$@")
name=${name:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$first")}
case $name in
*@*) digest=${name#*@} ;;
*) digest=$(digest_of "$name") || digest= ;;
esac
name=${name%@*}
base=()
if [[ $digest ]]; then
  echo "base: $name@$digest" >&2
  base=(--build-arg "BASE_IMAGE=$name@$digest")
elif [[ $name ]]; then
  echo "warning: $name is not pinned: $engine has no digest of it" >&2
fi

for environment in "${environments[@]}"; do
  "$engine" build -f "$checkout/docker/environments/$environment.Dockerfile" "$@" "${base[@]}" \
    -t "$tag-$environment" "$checkout"
  base=(--build-arg "BASE_IMAGE=$tag-$environment")
done
"$engine" build -f "$checkout/docker/Dockerfile" "$@" "${base[@]}" \
  --build-arg "BASE_NAME=$name" --build-arg "BASE_DIGEST=${digest:-unknown}" \
  --build-arg "REVISION=$(git -C "$checkout" rev-parse HEAD 2>/dev/null || echo unknown)" -t "$tag" "$checkout"
