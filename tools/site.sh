#!/usr/bin/env bash
# Sets up MkDocs and makes the documentation a site in build/site. A browser can open index.html directly; the search
# needs a server: python3 -m http.server --directory build/site
#
#   bash tools/site.sh [OPTION OF MKDOCS BUILD ...]      e.g. --site-dir /tmp/site
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_tools
setup_site

cd "$CHECKOUT"
# Material for MkDocs advertises its successor at each start.
NO_MKDOCS_2_WARNING=1 "$LAUNCHER_TEST_SITE/bin/python" -m mkdocs build --strict "$@"
