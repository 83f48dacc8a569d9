#!/usr/bin/env bash
# Sets up what the tests of the given paths need, or of all, then runs ruff, mypy and these tests; pytest's totals come
# last. By default that is one test of every promise: eleven minutes on two cores. The thorough suite is the rest: all rows
# of long tables, all MPIs, images, Azure's clients, hours of fuzzing.
#
#   bash tools/test.sh [--thorough] [ARGUMENT OF PYTEST ...]         e.g. tests/unit -k batch
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

SUITE="not thorough" LIMIT_S=900
[[ ${1-} != --thorough ]] || { SUITE=thorough LIMIT_S=3600 && shift; }
PURE=(tests/golden tests/fuzz tests/corpus tests/simulate) # need nothing but the project

# needs_of PATH: prints what the tests of a path need besides the project.
needs_of() {
  case $SUITE:${1#"$CHECKOUT"/} in
  *:tests/golden* | *:tests/fuzz* | *:tests/corpus* | *:tests/simulate*) ;;
  *:tests/unit*) echo stack ;; # Lightning, DeepSpeed and torchrun are asked what they would do
  not*:tests*) echo programs mpis stack known_horovod ;;
  *:tests/process* | *:tests/cluster*) echo programs all_mpis horovod site ;;
  *:tests/oracles*) echo programs horovod oracles ;;
  *:tests/deploy* | *:tests/azure*) echo programs all_mpis azure ;;
  *) echo programs all_mpis horovod site oracles azure containers ;;
  esac
}

# A real Slurm runs on the tests' nodes, and its scontrol reads host lists to compare with our own parser. Users start
# jobs in a tmux window and close it. DeepSpeed's autotuner reaches nodes by pdsh.
setup_programs() {
  setup_tools "${REHEARSAL_TOOLS[@]}" slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge \
    iptables:iptables tmux:tmux sshd:openssh-server ssh:openssh-client pdsh:pdsh gcc:g++
}

# Horovod takes four minutes to compile. The default suite uses what is there; in CI nothing may be skipped.
setup_known_horovod() {
  if [[ -n ${CI:-} ]] || made "$(horovod_dir)" "$(horovod_recipe)"; then
    setup_horovod
  else
    setup_stack
    say "without $HOROVOD: tests that need it are skipped (bash tools/test.sh --thorough compiles it)"
  fi
}

paths=()
for argument; do
  path=${argument%%::*}
  [[ $path != tests/* || -e $path ]] || fail "no such file or directory: $path"
  [[ $path == -* || ! -e $path ]] || paths+=("$(realpath -s "$path")")
done
((${#paths[@]})) || paths=("$CHECKOUT/tests")
needs=($(for path in "${paths[@]}"; do needs_of "$path"; done | tr ' ' '\n' | sort -u))

cd "$CHECKOUT"
unset PYTHONDONTWRITEBYTECODE # with it each of pytest's workers would rewrite every module again
failed=()
check() {
  say "$*"
  "$@" || failed+=("$1")
}

# Tests that must not run beside each other name the same xdist_group. pytest runs as a module, so that the checkout is
# on sys.path. Without the signals' defaults we would ignore, in the background of a script or under nohup, those that
# the tests send. There are more workers than processors, because many tests wait. A test that hangs fails after LIMIT_S,
# with its stack.
totals=$(mktemp)
trap 'rm -f "$totals" "${types-}"' EXIT
run_tests() {
  env --default-signal=HUP,INT,QUIT,TSTP,TTIN,TTOU python -m pytest -m "$SUITE" -n "$(($(nproc) * 5 / 2))" --dist loadgroup \
    --timeout "$LIMIT_S" --timeout-method signal --durations 25 --durations-min 2 -r a --no-fold-skipped "$@" </dev/null | tee -a "$totals"
}

setup_tools
setup_project
side_by_side "${needs[@]}"
check ruff check .
check ruff format --check .
if is_setting_up && [[ ${paths[*]} == "$CHECKOUT/tests" ]]; then
  check run_tests "$@" "${PURE[@]}"
  set -- "$@" "${PURE[@]/#/--ignore=}"
fi
wait_for_setups
types=$(mktemp)
mypy >"$types" 2>&1 & # reads the frameworks' types, which takes one processor for most of a minute
mypy=$!
check run_tests "$@"
wait "$mypy" || failed+=(mypy)
say "mypy"
cat "$types"
((${#failed[@]} == 0)) || say "FAILED, see above: ${failed[*]}"
grep -E '^=+ .* in [0-9.]+s.* =+$' "$totals" || true
((${#failed[@]} == 0))
