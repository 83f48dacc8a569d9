#!/usr/bin/env bash
# Sets up everything and shows the main job: one process trains the example, then a rehearsed Azure ML job of
# 2 nodes x 2 processes trains it, too, and reaches the same accuracy.
#
#   bash tools/demo.sh [OPTION OF THE EXAMPLE ...]      e.g. --epochs 8 --checkpoint /tmp/digits.pt
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

setup_tools "${REHEARSAL_TOOLS[@]}"
setup_frameworks
setup_project
say "ready"

cd "$CHECKOUT"
# Four processes on a machine with one GPU would have to share it, which NCCL refuses.
export CUDA_VISIBLE_DEVICES=""
train=(python examples/train_ddp.py --epochs 5 "$@")
show "${train[@]}"
show launcher rehearse --like azureml-mpi --nodes 2 --processes 2 -- "${train[@]}"

printf '\nNext: . .venv/bin/activate; launcher plan -- python examples/train_ddp.py\n'
