#!/bin/sh
# Describes a directory of installed packages: writes its SBOM to OUT.cdx.json (CycloneDX, by cyclonedx-py), and the texts
# of all licenses to OUT.licenses.txt. The same packages give the same files.
#
# usage: describe.sh PYTHON TOOLS PACKAGES OUT       TOOLS: the directory in which tools.lock is installed
set -eu
python=$1
tools=$2
packages=$3
out=$4

# cyclonedx-py lists the packages on a Python's path: here it begins with these, and -S leaves out the system's.
PYTHONPATH=$packages "$python" -I -c "
import runpy, sys

sys.path.insert(0, sys.argv.pop(1))
runpy.run_module('cyclonedx_py', run_name='__main__')
" "$tools" environment -S --output-reproducible --no-validate --output-file "$out.cdx.json" "$python"

# texts INFO: prints a package's license files; if it has none, the comment at the beginning of its modules.
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
  printf '\n%s\n\n' "${text:-This package brings no text of its license.}"
done >"$out.licenses.txt"
