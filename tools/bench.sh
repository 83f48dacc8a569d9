#!/usr/bin/env bash
# Sets up everything and runs all benchmarks: about 18 minutes on an idle machine, --quick 6. The results
# alone go to stdout; those of running processes, side by side with the peers, are Markdown as it stands
# in benchmarks/RESULTS.md. The status is 1 if a promise was broken.
#
#   bash tools/bench.sh [OPTION OF benchmarks/processes.py ...]     e.g. --quick --only death
set -euo pipefail
exec 4>&1 1>&2
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup_tools "${REHEARSAL_TOOLS[@]}" sshd:openssh-server ssh:openssh-client
setup_frameworks
setup_project
setup_mpis
setup_peers
say "ready"

cd "$CHECKOUT"
python -m launcher.bundle # as in an image
broken=0
python -m benchmarks.startup >&4 || broken=1
python -m benchmarks.planning >&4 || broken=1
python -m benchmarks.ports >&4 || broken=1
python -m benchmarks.checks >&4 || broken=1
python -m benchmarks.mpirun_start >&4 || broken=1
python -m benchmarks.processes "$@" >&4 || broken=1
exit "$broken"
