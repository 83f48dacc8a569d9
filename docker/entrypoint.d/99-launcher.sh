# shellcheck shell=bash
# For /opt/nvidia/entrypoint.d of NVIDIA's images: puts the launcher in front of the command.
#
# Their entry point sources each file of that directory, in the order of their names, and then becomes the command.
# So what this file makes of the arguments counts, and whatever the others have set up (drivers, libraries) is set
# up by then. A shell for people, and what starts with the launcher already, stay as they are.
# LAUNCHER_ENTRYPOINT=0 leaves every command as it is, without a word; so does LAUNCHER_DISABLE=1, which also switches
# off what is in front of a command already, and says so.
if [[ $# -gt 0 && ${LAUNCHER_ENTRYPOINT:-1} != 0 && ${1##*/} != launcher ]] &&
  ! [[ $# -eq 1 && ${1##*/} =~ ^(ba|da|z|k)?sh$ ]]; then
  if [[ ${LAUNCHER_DISABLE:-} =~ ^(1|[Tt][Rr][Uu][Ee])$ ]]; then
    echo "launcher: LAUNCHER_DISABLE=$LAUNCHER_DISABLE: the command runs as it is" >&2
  else
    set -- launcher run -- "$@"
  fi
fi
