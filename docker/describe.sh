#!/bin/sh
# Says what is in a folder of installed packages: OUT.cdx.json is its SBOM (CycloneDX, by cyclonedx-py), and
# OUT.licenses.txt has the texts of all licences. The same packages give the same files.
#
# usage: describe.sh PYTHON TOOLS PACKAGES OUT       TOOLS: the folder in which tools.lock is installed
set -eu
python=$1
tools=$2
packages=$3
out=$4

# It lists what stands on the path of a Python: of one that starts with these packages, and without the system's (-S).
PYTHONPATH=$packages "$python" -I -c "
import runpy, sys

sys.path.insert(0, sys.argv.pop(1))
runpy.run_module('cyclonedx_py', run_name='__main__')
" "$tools" environment -S --output-reproducible --no-validate --output-file "$out.cdx.json" "$python"

# texts INFO: its files of licences; of a package that has none, the comment with which its module begins.
texts() {
  find "$1" -type f \( -path '*/licenses/*' -o -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \
    -o -iname 'authors*' \) | LC_ALL=C sort >"$out.files"
  if [ -s "$out.files" ]; then
    while read -r file; do cat "$file" && echo; done <"$out.files"
  elif [ -f "$1/top_level.txt" ]; then
    while read -r name; do sed -n '/^#/!q; p' "$packages/$name.py" 2>/dev/null || true; done <"$1/top_level.txt"
  fi
  rm "$out.files"
}

for info in "$packages"/*.dist-info; do
  echo "================================================================================"
  sed -n '/^$/q; /^Name: /p; /^Version: /p; /^License[^:]*: /p; /^Classifier: License/p' "$info/METADATA"
  text=$(texts "$info")
  printf '\n%s\n\n' "${text:-This package brings no text of its licence.}"
done >"$out.licenses.txt"
