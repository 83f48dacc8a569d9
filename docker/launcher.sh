#!/bin/sh
# Runs the launcher with an isolated Python: -I ignores PYTHON* variables, the working directory and the user's
# packages; -S ignores site-packages, their .pth files and sitecustomize.
main=@DIR@/launcher.py
if [ -x "@PYTHON@" ]; then
  exec "@PYTHON@" -IS "$main" "$@"
fi
# That Python was removed after the image was built: use any other that is new enough.
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
  if "$python" -IS -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    exec "$python" -IS "$main" "$@"
  fi
done
# The last resort needs no Python: an entry point without flags can run its command as it is.
case ${LAUNCHER_DISABLE:-} in
  1 | [Tt][Rr][Uu][Ee])
    if [ "${1:-} ${2:-}" = "run --" ] && [ $# -gt 2 ]; then
      shift 2
      echo "launcher: LAUNCHER_DISABLE=$LAUNCHER_DISABLE: the command runs as it is" >&2
      exec "$@"
    fi
    ;;
esac
echo "launcher: error: [no-python] @PYTHON@ is not in this image, and no other Python 3.10 or newer is on PATH" >&2
echo "launcher:   from: $0, which was built to run with it" >&2
echo "launcher:   fix:  take an image with Python 3.10 or newer; put the launcher into it last, after whatever removes a Python" >&2
echo "launcher: note: LAUNCHER_DISABLE=1 runs the command as it is, without the launcher" >&2
exit 69
