#!/usr/bin/env bash
# Builds the release files of the last commit: the source archive, the wheel, and beside the wheel the SBOM and the
# licences of the packages that pip installs with it and its extra observe. The wheel itself contains no code of others.
#
#   bash tools/dist.sh [DIR]      DIR: dist of this checkout unless given; PYTHON has the package build
set -euo pipefail
dir=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../dist}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/source" "$dir"
git archive HEAD | tar -x -C "$work/source"
"${PYTHON:-.venv/bin/python}" -m build --outdir "$work/built" "$work/source"
# With the same versions and hashes as in an image.
sh docker/install.sh "$work/source" "$work/launcher"
wheel=$(basename "$work"/built/*.whl)
for end in cdx.json licenses.txt; do
  cp "$work/launcher/share/launcher.$end" "$work/built/${wheel%.whl}.$end"
done
mv "$work"/built/* "$dir"
