#!/usr/bin/env bash
# Keeps the package of a commit as tests/previous/launcher.tar.xz: the previous version, for the upgrade test.
#
#   bash tools/previous.sh COMMIT      after a release, with the commit of that release
#
# The same commit gives the same bytes with the same git and xz. tests/previous/README.md says which commit it holds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
commit=$(git rev-parse --verify "${1:?COMMIT}^{commit}")
git archive --format=tar "$commit" launcher | xz -9e --threads=1 >tests/previous/launcher.tar.xz
sed -i "s/^Commit: .*/Commit: \`$commit\`/" tests/previous/README.md
