# shellcheck shell=bash
# Sets up the frameworks: PyTorch, all the others on top of it, and the launchers that benchmarks compare. Sourced by
# setup.sh, whose steps and pins it uses.

# The launchers that are measured beside ours, in one environment that also has the packages that ours needs.
PEERS=("$ACCELERATE" "$DEEPSPEED" "$HOROVOD")
BENCHED=("psutil>=5.9" "nvidia-ml-py>=12.535")
HOROVOD_NEEDS=(setuptools wheel packaging "cmake<4" cffi pyyaml psutil cloudpickle) # it has no pyproject.toml

setup_frameworks() {
  make_once "installing PyTorch $TORCH and ${FRAMEWORKS[*]} (once, about a minute)" \
    "$(frameworks_dir)" "$(frameworks_recipe)" make_frameworks
}

frameworks_recipe() { echo "torch==$TORCH ${FRAMEWORKS[*]} $PYTHON_IS"; }

frameworks_dir() { echo "$CACHE/frameworks-$(frameworks_recipe | sha256sum | cut -c 1-12)"; }

make_frameworks() {
  "$PYTHON" -m venv "$1" && install_torch "$1/bin/python" &&
    "$1/bin/python" -m pip install --quiet "${FRAMEWORKS[@]}"
}

# A separate environment, because the main job needs only PyTorch's. It sees PyTorch's packages. Those that the other
# frameworks need in another version are installed here, where they are found first.
setup_stack() {
  setup_frameworks
  make_once "installing ${STACK[*]} (once, about a minute)" "$(stack_dir)" "$(stack_recipe)" make_stack
}

stack_recipe() { echo "$(frameworks_dir) ${STACK[*]}"; }

stack_dir() { echo "$CACHE/stack-$(stack_recipe | sha256sum | cut -c 1-12)"; }

make_stack() {
  "$PYTHON" -m venv "$1" && show_packages "$1" "$(frameworks_dir)" &&
    DS_BUILD_OPS=0 "$1/bin/python" -m pip install --quiet "${STACK[@]}"
}

# For the tests. Where Horovod does not compile, those that are marked horovod are skipped (tests/conftest.py), and the
# others run; CI runs them all.
setup_horovod() {
  setup_stack
  if [[ -n ${CI:-} ]]; then
    compile_horovod
  else
    # A subshell, because fail exits.
    (compile_horovod) || say "without $HOROVOD: see above. The tests that need it are skipped (with CI=true: an error)"
  fi
}

# Compiled once: the tests' environment uses it from here, and the benchmarks' environment and the image get its wheel.
compile_horovod() {
  local tool missing=()
  made "$(horovod_dir)" "$(horovod_recipe)" && return
  for tool in mpirun:openmpi-bin g++:g++ make:make; do
    command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  # mpicxx may be installed without MPI's headers.
  mpicxx -E -x c++ -include mpi.h /dev/null >/dev/null 2>&1 || missing+=(libopenmpi-dev)
  need_packages "${missing[@]}"
  make_once "compiling $HOROVOD (once, about four minutes)" "$(horovod_dir)" "$(horovod_recipe)" make_horovod
}

horovod_recipe() { echo "$(stack_dir) $HOROVOD ${HOROVOD_NEEDS[*]} without a GPU"; }

horovod_dir() { echo "$CACHE/horovod-$(horovod_recipe | sha256sum | cut -c 1-12)"; }

# make_horovod DIR: builds Horovod for PyTorch and TensorFlow, with gloo and with MPI, and without a GPU. Images that
# have a Horovod for GPUs may have set its switches, such as HOROVOD_GPU_OPERATIONS=NCCL: they are not for this build.
make_horovod() {
  local python=$1/bin/python source=$1/source
  "$PYTHON" -m venv "$1" && show_packages "$1" "$(stack_dir)" "$(frameworks_dir)" &&
    "$python" -m pip install --quiet "${HOROVOD_NEEDS[@]}" &&
    "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: --dest "$source" "$HOROVOD" &&
    tar -xzf "$source"/*.tar.gz -C "$source" --strip-components=1 --no-same-owner && adapt_horovod "$source" &&
    (unset "${!HOROVOD_@}" && PATH=$1/bin:$PATH MAKEFLAGS=-j$(nproc) HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 \
      HOROVOD_WITH_MPI=1 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_NVTX=1 \
      "$python" -m pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$1/wheels" "$source") &&
    rm -r "$source" && "$python" -m pip install --quiet --no-deps "$1"/wheels/horovod-*.whl
}

# adapt_horovod SOURCE: makes changes for which Horovod's build has no switch. Today's frameworks need C++17, and
# TensorFlow no longer has XLA headers. With a CUDA toolkit on this machine, or a PyTorch that was built with CUDA, the
# build would ask for CUDA. Debug information would double its time.
adapt_horovod() {
  (cd "$1" && sed -i -e 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' \
    -e 's/^#if TENSORFLOW_VERSION >= 2006000000$/#if 0/' \
    -e 's/^include(CheckLanguage)$/set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)\nmacro(check_language)\nendmacro()/' \
    -e 's/string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)/set(Pytorch_CUDA FALSE)/' \
    -e 's/"-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO/"-O2 -g" "-O2" CMAKE_CXX_FLAGS_RELWITHDEBINFO/' \
    CMakeLists.txt horovod/torch/CMakeLists.txt cmake/Modules/FindPytorch.cmake horovod/tensorflow/xla_mpi_ops.cc)
}

# show_packages DIR OTHER...: makes the packages of other virtual environments visible in DIR, after its own.
show_packages() {
  local dir=$1 site
  shift
  site=$(site_of "$dir") && printf "%s$site\n" "$@" >"$dir$site/frameworks.pth"
}

# site_of DIR: prints the folder of a virtual environment's packages, relative to its root.
site_of() {
  local site
  site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && echo "${site#"$1"}"
}

# install_torch PYTHON: without a GPU it installs the build without CUDA, if pip finds that in its indexes.
install_torch() {
  if ! command -v nvidia-smi >/dev/null; then
    "$1" -m pip install --quiet "torch==$TORCH+cpu" && return
    say "pip finds no CPU build of PyTorch, and takes the one with CUDA: about 3 GB." \
      "(The other: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu)"
  fi
  "$1" -m pip install --quiet "torch==$TORCH"
}

# The launchers with which the benchmarks compare ours. One that cannot be installed is reported, left out, and named
# in the results.
setup_peers() {
  local tool peer recipe
  for tool in mpirun:openmpi-bin g++:g++; do
    command -v "${tool%:*}" >/dev/null || (need_packages "${tool#*:}") || say "without ${tool#*:}: see above"
  done
  recipe="torch==$TORCH ${BENCHED[*]} $PYTHON_IS"
  export LAUNCHER_BENCH_PEERS # read by benchmarks/peers.py
  LAUNCHER_BENCH_PEERS=$CACHE/peers-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing PyTorch $TORCH for the peers (once, about a minute)" \
    "$LAUNCHER_BENCH_PEERS" "$recipe" make_peers
  for peer in "${PEERS[@]}"; do
    # A subshell, because fail exits. The folder has only the recipe; the packages are in the environment.
    (add_peer "$peer" "${peer%%=*}") || say "without $peer: see above"
  done
}

# add_peer REQUIREMENT NAME: installs one of these launchers.
add_peer() {
  local recipe=$1
  [[ $2 != horovod ]] || { setup_stack && compile_horovod && recipe=$(horovod_recipe); }
  make_once "installing $1" "$LAUNCHER_BENCH_PEERS/made/$2" "$recipe" \
    "install_$2" "$1" "$LAUNCHER_BENCH_PEERS/bin/python"
}

make_peers() {
  "$PYTHON" -m venv "$1" && install_torch "$1/bin/python" &&
    "$1/bin/python" -m pip install --quiet "${BENCHED[@]}"
}

# install_PEER REQUIREMENT PYTHON: installs the launcher into that Python's environment.
install_accelerate() { "$2" -m pip install --quiet "$1"; }

install_deepspeed() { DS_BUILD_OPS=0 "$2" -m pip install --quiet "$1"; }

install_horovod() { "$2" -m pip install --quiet "${HOROVOD_NEEDS[@]}" "$(horovod_dir)"/wheels/horovod-*.whl; }
