#!/usr/bin/env bash
# Sets up what the tests of the given paths need, or everything without a path. Then runs ruff, mypy and these tests;
# pytest's totals come last.
#
#   bash tools/test.sh [ARGUMENT OF PYTEST ...]         e.g. tests/unit -k batch
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

ALL=(programs stack horovod mpis oracles azure site containers)

# needs_of PATH: prints what the tests of a path need besides the project, as words of $ALL.
needs_of() {
  case ${1#"$CHECKOUT"/} in
  tests/golden* | tests/fuzz* | tests/corpus*) ;;
  tests/unit*) echo stack ;; # Lightning, DeepSpeed and torchrun are asked what they would do
  tests/oracles/test_nodelist.py*) echo programs ;;
  tests/oracles*) echo programs horovod oracles ;;
  tests/azure*) echo azure ;;
  tests/container*) echo horovod containers ;;
  tests/deploy*) echo programs mpis azure ;;
  tests/process/test_site.py*) echo site ;;
  tests/process*) echo programs horovod mpis site ;;
  tests/cluster*) echo programs horovod mpis ;;
  *) echo "${ALL[@]}" ;;
  esac
}

# A real Slurm runs on the tests' nodes, and its scontrol reads host lists to compare with our own parser. Users start
# jobs in a tmux window and close it. DeepSpeed's autotuner reaches nodes by pdsh.
setup_programs() {
  setup_tools "${REHEARSAL_TOOLS[@]}" slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge \
    iptables:iptables tmux:tmux sshd:openssh-server ssh:openssh-client pdsh:pdsh gcc:g++
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
unset PYTHONDONTWRITEBYTECODE # with it each of pytest's workers would rewrite every module again
failed=()
check() {
  say "$*"
  "$@" || failed+=("$1")
}

check ruff check .
check ruff format --check .
check mypy
# Tests that must not run beside each other name the same xdist_group. pytest runs as a module, so that the checkout is
# on sys.path. There is one worker more than processors, because many tests wait. The tests start thousands of real
# processes on a busy machine, so a failed test is run once more; a test that passes only then is a defect, which the
# summary names (RERUN) and the totals count.
options=(-n "$(($(nproc) + 1))" --dist loadgroup --reruns 1 --rerun-show-tracebacks --durations 25 --durations-min 5 -r aR
  --no-fold-skipped "$@")
say "python -m pytest ${options[*]}"
totals=$(mktemp)
trap 'rm -f "$totals"' EXIT
# In the background of a script, or under nohup, we would ignore signals that the tests send.
env --default-signal=HUP,INT,QUIT,TSTP,TTIN,TTOU python -m pytest "${options[@]}" </dev/null | tee "$totals" || failed+=(pytest)
if ((${#failed[@]})); then
  say "FAILED, see above: ${failed[*]}"
  tail -n 1 "$totals"
  exit 1
fi
