#!/usr/bin/env bash
# Proves on a machine with an NVIDIA GPU what tests elsewhere only replay: facts, training, failures, restarts, costs.
# Needs what an image for GPUs has (Python 3.10, torch with CUDA, pynvml, pytest); installs and downloads nothing.
#
#   bash tools/gpu.sh OUT [--only PART ...] [--seconds 350]      leaves OUT/results.json, table.txt and logs.tar.gz
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# where images and their drivers have nvidia-smi and ptxas, if PATH does not
export PATH=$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin
exec "${PYTHON:-python3}" tools/gpu "$@"
