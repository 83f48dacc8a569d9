# shellcheck shell=bash
# For /opt/nvidia/entrypoint.d of NVIDIA's images: puts the launcher in front of the command.
#
# Their entry point sources each file of that folder, in the order of their names, and then becomes the command.
# So what this file makes of the arguments counts, and whatever the others have set up (drivers, libraries) is set
# up by then. A shell for people, and what starts with the launcher already, stay as they are.
# LAUNCHER_ENTRYPOINT=0 leaves every command as it is.
if [[ $# -gt 0 && ${LAUNCHER_ENTRYPOINT:-1} != 0 && ${1##*/} != launcher ]] &&
  ! [[ $# -eq 1 && ${1##*/} =~ ^(ba|da|z|k)?sh$ ]]; then
  set -- launcher run -- "$@"
fi
