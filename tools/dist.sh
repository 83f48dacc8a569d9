#!/usr/bin/env bash
# Builds the release files of the last commit. The same commit and the same Python give the same bytes, whatever the
# folder, the umask and the time zone. Nothing contains code of others but the wheelhouse and the file for Pythons
# without pip, whose SBOMs and licences are beside them.
#
#   bash tools/dist.sh [DIR]      DIR: dist of this checkout unless given; PYTHON has the package build, or a fresh
#                                 environment gets it
#
#   NAME.tar.gz, NAME.whl         the source archive, and the wheel; with the SBOM and the licences of the packages that
#                                 pip installs with it and its extra observe
#   cluster-launcher.pyz          one file that Python runs without pip (tools/make_pyz.py)
#   wheelhouse/                   the wheel and those that it needs, and their requirements.txt with hashes
#   SHA256SUMS                    of all these
set -euo pipefail
umask 022
dir=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../dist}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8 PIP_DISABLE_PIP_VERSION_CHECK=1
python=$(command -v "${PYTHON:-.venv/bin/python}") || python=
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ -z $python ]] || ! "$python" -c 'import build.__main__' 2>/dev/null; then # a fresh clone
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install --quiet build==1.6.1 packaging==26.4 pyproject_hooks==1.3.3
fi

source=$work/source
if [[ -n $(ls -A "$dir" 2>/dev/null) ]]; then
  [[ -e $dir/SHA256SUMS ]] || { echo "dist.sh: $dir has other files than a release: empty it, or name another folder" >&2; exit 1; }
  rm -rf "$dir"
fi
mkdir -p "$source" "$dir" "$work/built"
git archive HEAD | tar -x --no-same-owner --no-same-permissions -C "$source"
pip() { "$python" -m pip "$@" --quiet; }

# With the versions and hashes of an image.
pip install --target "$work/tools" --no-deps --only-binary :all: --require-hashes -r "$source/docker/tools.lock"
PYTHONPATH=$work/tools "$python" -m build --no-isolation --outdir "$work/built" "$source"
"$python" "$source/tools/repack.py" "$work"/built/*.tar.gz
wheel=$(basename "$work"/built/*.whl)
sh "$source/docker/install.sh" "$source" "$work/launcher"
for end in cdx.json licenses.txt; do
  cp "$work/launcher/share/launcher.$end" "$work/built/${wheel%.whl}.$end"
done

house=$work/built/wheelhouse
pip download --dest "$house" --no-deps --only-binary :all: --require-hashes -r "$source/docker/requirements.lock"
cp "$work/built/$wheel" "$house"
"$python" "$source/tools/make_pyz.py" "$work/built/cluster-launcher.pyz" "$house"/*.whl
(cd "$house" && for file in *.whl; do
  printf '%s --hash=sha256:%s\n' "$(sed 's/^\([^-]*\)-\([^-]*\)-.*/\1==\2/; s/_/-/g' <<<"$file")" \
    "$(sha256sum "$file" | cut -d ' ' -f 1)"
done >requirements.txt)
"$python" -m zipfile -e "$work/built/cluster-launcher.pyz" "$work/pyz"
"$python" -m zipfile -e "$work/pyz/payload.zip" "$work/pyz"
sh "$source/docker/describe.sh" "$python" "$work/tools" "$work/pyz/lib" "$work/built/cluster-launcher.pyz"
(cd "$work/built" && find . -type f -printf '%P\n' | sort | xargs sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
cp -R "$work"/built/. "$dir"
