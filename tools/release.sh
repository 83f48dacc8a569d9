#!/usr/bin/env bash
# Builds a release from its tag, in a clone of that commit alone, and publishes nothing: the files of tools/dist.sh, the
# documentation as a site, an image, the hashes of all, and their provenance. At the end it prints what signs and
# publishes them, for those who hold the accounts.
#
#   bash tools/release.sh [DIR]        DIR: build/release of this checkout unless given; it must be empty or not there
#
#   ENGINE=podman                      builds the image; ENGINE=none builds none. docker unless given
#   IMAGE_OPTIONS="--build-arg ..."    options of docker build, e.g. another BASE_IMAGE
#   BUILDER_ID=https://...             what builds, for the provenance; this machine's name unless given
#
#   dist/                  the source archive, the wheel, the pyz, the wheelhouse: see tools/dist.sh
#   site.tar.gz            the documentation as a site
#   image.tar              the launcher on its base, as an archive that docker load, podman load and skopeo read
#   provenance.json        what was built of which commit, by what: an in-toto statement (SLSA provenance 1)
#   SHA256SUMS             of all these
set -euo pipefail
umask 022
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=$(realpath -m "${1:-$checkout/build/release}")
engine=${ENGINE:-docker}

fail() {
  echo "release.sh: $1" >&2
  exit 1
}

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$checkout/launcher/core/version.py")
tag=v$version
commit=$(git -C "$checkout" rev-parse HEAD)
[[ $(git -C "$checkout" rev-parse --verify --quiet "$tag^{commit}") == "$commit" ]] ||
  fail "the last commit has no tag $tag: git tag -s $tag -m $tag"
[[ -z $(git -C "$checkout" status --porcelain) ]] || fail "there are changes that are not committed: git status"
grep -qE "^## ${version//./\\.} \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$" "$checkout/CHANGELOG.md" ||
  fail "CHANGELOG.md has no heading '## $version (YYYY-MM-DD)'"
grep -qx "ARG VERSION=$version" "$checkout/docker/Dockerfile" ||
  fail "docker/Dockerfile has another VERSION than $version"
[[ $engine == none ]] || "$engine" info >/dev/null 2>&1 || fail "$engine does not answer: ENGINE=podman, or ENGINE=none"
[[ -z $(ls -A "$dir" 2>/dev/null) ]] || fail "$dir is not empty: remove it, or name another directory"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$work/source
git clone --quiet --depth 1 --branch "$tag" "file://$checkout" "$source" # nothing but what the tag has
time=$(git -C "$source" log -1 --format=%ct)
mkdir -p "$dir"

bash "$source/tools/dist.sh" "$dir/dist"
bash "$source/tools/site.sh" --site-dir "$work/site"
tar -C "$work/site" --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner -c . | gzip -n >"$dir/site.tar.gz"
if [[ $engine != none ]]; then
  read -ra options <<<"${IMAGE_OPTIONS:-}"
  options+=(--build-arg "SOURCE_DATE_EPOCH=$time")
  ENGINE=$engine "$source/docker/build.sh" "cluster-launcher:$version" -- "${options[@]}"
  "$engine" save --output "$dir/image.tar" "cluster-launcher:$version"
fi

python3 - "$dir" "$tag" "$commit" "${BUILDER_ID:-$(uname -n)}" "$source" <<'PYTHON'
"""Write provenance.json: https://slsa.dev/spec/v1.0/provenance"""
import hashlib, json, sys
from pathlib import Path

folder, tag, commit, builder, source = Path(sys.argv[1]), *sys.argv[2:5], Path(sys.argv[5])

def digest(path):
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

files = sorted(path for path in folder.rglob("*") if path.is_file())
locks = sorted(source.glob("docker/*.lock"))
statement = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": str(path.relative_to(folder)), "digest": digest(path)} for path in files],
    "predicateType": "https://slsa.dev/provenance/v1",
    "predicate": {
        "buildDefinition": {
            "buildType": "tools/release.sh",
            "externalParameters": {"ref": f"refs/tags/{tag}"},
            "resolvedDependencies": [
                {"name": "source", "digest": {"gitCommit": commit}},
                *({"name": str(path.relative_to(source)), "digest": digest(path)} for path in locks),
            ],
        },
        "runDetails": {"builder": {"id": builder}},
    },
}
(folder / "provenance.json").write_text(json.dumps(statement, indent=1) + "\n")
PYTHON
(cd "$dir" && find . -type f -printf '%P\n' | sort | xargs sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)

cat <<NEXT

$tag is built in $dir. Nothing is published. To check, sign and publish it:

  cd $dir && sha256sum --check SHA256SUMS
  cosign sign-blob --bundle SHA256SUMS.sigstore SHA256SUMS     # it has the hash of provenance.json, too
  git push origin $tag
  twine upload dist/*.whl dist/*.tar.gz
  skopeo copy docker-archive:image.tar docker://REGISTRY/cluster-launcher:$version
  cosign sign REGISTRY/cluster-launcher:$version
  tar -xzf site.tar.gz -C WEB_ROOT
NEXT
