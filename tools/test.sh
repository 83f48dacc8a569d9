#!/usr/bin/env bash
# Sets up what the tests of some paths need, all of it without a path, and runs ruff, mypy and these tests; pytest's
# totals stand at the end.
#
#   bash tools/test.sh [ARGUMENT OF PYTEST ...]         e.g. tests/unit -k batch
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

ALL=(programs stack horovod mpis oracles azure site containers)

# needs_of PATH: what its tests need besides the project, in words of $ALL.
needs_of() {
  case ${1#"$CHECKOUT"/} in
  tests/golden* | tests/fuzz*) ;;
  tests/unit*) echo stack ;; # Lightning, DeepSpeed and torchrun are asked what they would do
  tests/oracles/test_nodelist.py*) echo programs ;;
  tests/oracles*) echo programs horovod oracles ;;
  tests/azure*) echo azure ;;
  tests/container*) echo horovod containers ;;
  tests/process/test_site.py*) echo site ;;
  tests/process*) echo programs horovod mpis site ;;
  tests/cluster*) echo programs horovod mpis ;;
  *) echo "${ALL[@]}" ;;
  esac
}

# A real Slurm runs on the tests' nodes, and its scontrol reads host lists beside our own reader. A tmux
# window is where people start jobs, and close it. DeepSpeed's autotuner reaches nodes by pdsh.
setup_programs() {
  setup_tools "${REHEARSAL_TOOLS[@]}" slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge \
    iptables:iptables tmux:tmux sshd:openssh-server ssh:openssh-client pdsh:pdsh
}

needs=()
for argument; do
  path=${argument%%::*}
  [[ $path == -* || ! -e $path ]] || needs+=("$(needs_of "$(realpath -s "$path")")")
done
((${#needs[@]})) || needs=("${ALL[@]}")

setup_tools
setup_project
for need in "${ALL[@]}"; do
  [[ " ${needs[*]} " != *" $need "* ]] || "setup_$need"
done

cd "$CHECKOUT"
unset PYTHONDONTWRITEBYTECODE # with it each of pytest's workers rewrites every module again
failed=()
check() {
  say "$*"
  "$@" || failed+=("$1")
}

check ruff check .
check ruff format --check .
check mypy
# Tests that must not run beside each other name the same xdist_group. As a module, so that the checkout
# is on sys.path. One worker more than processors, because many tests wait. Thousands of real processes on a busy machine: what fails is tried once more, and what passes
# only then is a defect that the summary names (RERUN) and the totals count.
options=(-n "$(($(nproc) + 1))" --dist loadgroup --reruns 1 --rerun-show-tracebacks --durations 25 --durations-min 5 -r aR "$@")
say "python -m pytest ${options[*]}"
totals=$(mktemp)
trap 'rm -f "$totals"' EXIT
# Started in the background of a script, or by nohup, signals are ignored here that tests send.
env --default-signal=HUP,INT,QUIT,TSTP,TTIN,TTOU python -m pytest "${options[@]}" </dev/null | tee "$totals" || failed+=(pytest)
if ((${#failed[@]})); then
  say "FAILED, see above: ${failed[*]}"
  tail -n 1 "$totals"
  exit 1
fi
