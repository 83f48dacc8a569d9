#!/usr/bin/env bash
# Sets up everything, and runs ruff, mypy and all the tests; pytest's totals stand at the end.
#
#   bash tools/test.sh [ARGUMENT OF PYTEST ...]         e.g. tests/unit -k batch
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# A real Slurm runs on the tests' nodes, and its scontrol reads host lists beside our own reader. A tmux
# window is where people start jobs, and close it. DeepSpeed's autotuner reaches nodes by pdsh.
setup_tools "${REHEARSAL_TOOLS[@]}" slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge \
  iptables:iptables tmux:tmux sshd:openssh-server ssh:openssh-client pdsh:pdsh
setup_frameworks
setup_stack
setup_project
setup_mpis
setup_oracles
setup_azure
setup_site
setup_containers

cd "$CHECKOUT"
failed=()
check() {
  say "$*"
  "$@" || failed+=("$1")
}

check ruff check .
check ruff format --check .
check mypy
# Tests that must not run beside each other name the same xdist_group. As a module, so that the checkout
# is on sys.path. Thousands of real processes on a busy machine: what fails is tried once more, and what passes
# only then is a defect that the summary names (RERUN) and the totals count.
options=(-n "$(nproc)" --dist loadgroup --reruns 1 --rerun-show-tracebacks -r aR "$@")
say "python -m pytest ${options[*]}"
totals=$(mktemp)
trap 'rm -f "$totals"' EXIT
python -m pytest "${options[@]}" </dev/null | tee "$totals" || failed+=(pytest)
if ((${#failed[@]})); then
  say "FAILED, see above: ${failed[*]}"
  tail -n 1 "$totals"
  exit 1
fi
