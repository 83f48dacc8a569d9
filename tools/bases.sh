#!/usr/bin/env bash
# Pins the base images in docker/: asks the registry of each for the digest of its tag, and writes NAME:TAG@DIGEST.
#
#   bash tools/bases.sh       needs skopeo; review and commit the difference
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v skopeo >/dev/null || {
  echo "error: no skopeo on PATH: apt-get install skopeo" >&2
  exit 69
}

files=(docker/Dockerfile deploy/compose/compose.yaml docker/azureml/Dockerfile docker/environments/*.Dockerfile)
names=$(sed -n -e 's/^ARG BASE_IMAGE=//p' -e 's/.*{BASE_IMAGE:-\(.*\)}$/\1/p' "${files[@]}" | sort -u)
for name in $names; do
  tag=${name%@*}
  # The digest of what the tag names: for several architectures, of their list.
  digest=$(skopeo inspect --raw "docker://$tag" | sha256sum)
  sed -i "s|$name|$tag@sha256:${digest%% *}|" "${files[@]}"
  echo "$tag@sha256:${digest%% *}"
done
