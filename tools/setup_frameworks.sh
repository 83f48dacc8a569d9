# shellcheck shell=bash
# The frameworks: PyTorch, all the others on top of it, and the launchers that benchmarks compare. Sourced by
# setup.sh, whose steps and pins it uses.

# The launchers that are measured beside ours, in one environment that has what ours needs, too.
PEERS=("$ACCELERATE" "$DEEPSPEED" "$HOROVOD")
BENCHED=("psutil>=5.9" "nvidia-ml-py>=12.535" "rich>=13")
HOROVOD_NEEDS=(setuptools wheel packaging "cmake<4" cffi pyyaml psutil cloudpickle) # it has no pyproject.toml

setup_frameworks() {
  local recipe
  recipe="torch==$TORCH ${FRAMEWORKS[*]} $PYTHON_IS"
  FRAMEWORKS_DIR=$CACHE/frameworks-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing PyTorch $TORCH and ${FRAMEWORKS[*]} (once, about a minute)" \
    "$FRAMEWORKS_DIR" "$recipe" make_frameworks
}

make_frameworks() {
  "$PYTHON" -m venv "$1" && install_torch "$1/bin/python" &&
    "$1/bin/python" -m pip install --quiet "${FRAMEWORKS[@]}"
}

# Apart from PyTorch's, which the main job alone needs. It sees PyTorch, and what of it has to be of
# another version for the others is installed here, where it is found first.
setup_stack() {
  local tool recipe missing=()
  for tool in mpirun:openmpi-bin g++:g++ make:make; do
    command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  # Its compiler is there without its headers.
  mpicxx -E -x c++ -include mpi.h /dev/null >/dev/null 2>&1 || missing+=(libopenmpi-dev)
  recipe=$(stack_recipe)
  made "$(stack_dir)" "$recipe" || need_packages "${missing[@]}"
  make_once "installing ${STACK[*]}, compiling $HOROVOD (once, about eight minutes)" \
    "$(stack_dir)" "$recipe" make_stack
}

stack_recipe() { echo "$FRAMEWORKS_DIR ${STACK[*]} $HOROVOD ${HOROVOD_NEEDS[*]}"; }

stack_dir() { echo "$CACHE/stack-$(stack_recipe | sha256sum | cut -c 1-12)"; }

make_stack() {
  local python=$1/bin/python
  "$PYTHON" -m venv "$1" && echo "$FRAMEWORKS_DIR$(site_of "$1")" >"$1$(site_of "$1")/frameworks.pth" &&
    DS_BUILD_OPS=0 "$python" -m pip install --quiet "${STACK[@]}" && make_whole_horovod "$python" "$1"
}

# site_of DIR: where a virtual environment has its packages, from its own root.
site_of() {
  local site
  site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && echo "${site#"$1"}"
}

# Without a GPU, the build that needs no CUDA, if pip finds it where it was told to look.
install_torch() {
  if ! command -v nvidia-smi >/dev/null; then
    "$1" -m pip install --quiet "torch==$TORCH+cpu" && return
    say "pip finds no CPU build of PyTorch, and takes the one with CUDA: about 3 GB." \
      "(The other: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu)"
  fi
  "$1" -m pip install --quiet "torch==$TORCH"
}

# What the benchmarks measure us with. What cannot be had is said, left out, and named in the results.
setup_peers() {
  local tool peer recipe
  for tool in mpirun:openmpi-bin g++:g++ make:make; do
    command -v "${tool%:*}" >/dev/null || (need_packages "${tool#*:}") || say "without ${tool#*:}: see above"
  done
  recipe="torch==$TORCH ${BENCHED[*]} $PYTHON_IS"
  export LAUNCHER_BENCH_PEERS # read by benchmarks/peers.py
  LAUNCHER_BENCH_PEERS=$CACHE/peers-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing PyTorch $TORCH for the peers (once, about a minute)" \
    "$LAUNCHER_BENCH_PEERS" "$recipe" make_peers
  for peer in "${PEERS[@]}"; do
    recipe=$peer
    [[ $peer != horovod* ]] || recipe="$peer ${HOROVOD_NEEDS[*]}"
    # A subshell, because fail exits. The folder holds the recipe; the packages are in the environment.
    (make_once "installing $peer (horovod: 3 minutes)" "$LAUNCHER_BENCH_PEERS/made/${peer%%=*}" "$recipe" \
      "make_${peer%%=*}" "$peer" "$LAUNCHER_BENCH_PEERS/bin/python") || say "without $peer: see above"
  done
}

make_peers() {
  "$PYTHON" -m venv "$1" && install_torch "$1/bin/python" &&
    "$1/bin/python" -m pip install --quiet "${BENCHED[@]}"
}

# make_PEER REQUIREMENT PYTHON DIR: install it into that Python's environment.
make_accelerate() { "$2" -m pip install --quiet "$1"; }

make_deepspeed() { DS_BUILD_OPS=0 "$2" -m pip install --quiet "$1"; }

# Of its controllers only gloo, which is what `horovodrun --gloo` starts.
make_horovod() {
  compile_horovod "$2" "$3" HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1
}

# make_whole_horovod PYTHON DIR: for PyTorch and TensorFlow, with gloo and with MPI.
make_whole_horovod() {
  compile_horovod "$1" "$2" HOROVOD_WITH_MPI=1 HOROVOD_WITH_TENSORFLOW=1
}

# compile_horovod PYTHON DIR NAME=VALUE...: Today's frameworks are C++17, which Horovod's own cmake overrides;
# the last -std on a command line wins. TensorFlow has no XLA headers any more: without its custom operations.
# pip's cache does not know for which frameworks a wheel was compiled.
compile_horovod() {
  local python=$1 dir=$2
  shift 2
  cat >"$dir/g++17" <<'END' && chmod +x "$dir/g++17" && "$python" -m pip install --quiet "${HOROVOD_NEEDS[@]}" &&
#!/bin/sh
case "$*" in
*xla_mpi_ops.cc*) set -- "$@" -UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=2005000000 ;;
esac
exec g++ "$@" -std=gnu++17
END
    env PATH="${python%/*}:$PATH" CXX="$dir/g++17" HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 \
      HOROVOD_WITHOUT_MXNET=1 "$@" "$python" -m pip install --quiet --no-cache-dir --no-build-isolation "$HOROVOD"
}
