# shellcheck shell=bash
# Makes the images of the container tests; sourced by setup.sh, whose steps and pins it uses.

# A system without documentation. The keys that ssh makes at its installation are removed.
IMAGES=localhost/launcher-test
BASE_IMAGE=$IMAGES/base
SMALL=(--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/'{doc,man,locale}'/*')
IMAGE_OPTIONS=(--variant=essential --include=python3-venv,openmpi-bin,tini
  "${SMALL[@]}")
# Packages in the images: those that the launcher needs and is built with, and those that jobs need.
LOCKS=(docker/requirements.lock docker/observe.lock docker/tools.lock docker/environments/mpi.lock)
WHEELS=(numpy scikit-learn)
HOROVOD_IMPORTS="cffi cloudpickle packaging psutil pycparser pyyaml"
# The image in which DeepSpeed compiles at run time, and in which Horovod is compiled for its image if no wheel fits.
COMPILE_OPTIONS=(--variant=essential --include=python3-venv,python3-dev,g++,make "${SMALL[@]}")

# The container tests need podman, buildah, and images to build on. They are skipped if this machine cannot run
# containers, and report any other error themselves.
setup_containers() {
  local reason
  export LAUNCHER_TEST_IMAGES=$CACHE/images # read by tests/container/images.py
  if reason=$(can_contain 2>&1); then
    { (make_containers) && setup_environments; } || say "without containers: see above"
  else
    say "without containers: $reason"
  fi
}

# The same check by which tests/container/podman.py decides whether to skip.
can_contain() {
  if ((EUID)); then
    echo "only root can have them"
    return 1
  fi
  unshare --mount --uts --ipc --net --pid --fork mount -t tmpfs tmpfs /mnt
}

make_containers() {
  local tool missing=()
  for tool in podman:podman buildah:buildah runc:runc mmdebstrap:mmdebstrap skopeo:skopeo iptables:iptables \
    /usr/lib/podman/netavark:netavark /usr/lib/podman/aardvark-dns:aardvark-dns; do
    command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  need_packages "${missing[@]}"
  make_once "making images: Debian with its Python, Open MPI and ssh; PyTorch on top (once, four minutes)" \
    "$LAUNCHER_TEST_IMAGES" "$(image_recipe)" make_images
}

# Makes more of docker/environments, for the tests that run a job in each of them.
setup_environments() {
  (make_once "making images with TensorFlow, DeepSpeed and Horovod (once, three minutes)" \
    "$LAUNCHER_TEST_IMAGES/environments" "$(environment_recipe)" make_environments) ||
    say "without images of these frameworks: see above"
}

image_recipe() {
  (cd "$CHECKOUT" && echo "${IMAGE_OPTIONS[*]} ${WHEELS[*]} $TORCH $(cat docker/environments/{pytorch,mpi}.Dockerfile "${LOCKS[@]}" | sha256sum)")
}

environment_recipe() {
  (cd "$CHECKOUT/docker/environments" && echo "$TENSORFLOW $(horovod_recipe) ${COMPILE_OPTIONS[*]} $(cat {tensorflow,deepspeed,horovod}.Dockerfile {compile,deepspeed}.lock | sha256sum) $(image_recipe)")
}

# The tests add the launcher itself, from the checkout.
make_images() {
  import_system "$1" "$BASE_IMAGE" "${IMAGE_OPTIONS[@]}" && make_wheels "$1" &&
    build_image "$1" pytorch "$BASE_IMAGE" --build-arg "TORCH=torch ${WHEELS[*]}" &&
    build_image "$1" mpi "$IMAGES/pytorch" && unmount_images "$1"
}

# on_images PROGRAM DIR ARGUMENT...: runs podman or buildah on the images of DIR. Their state has a path of its own, always
# the same for DIR: it may have 50 characters, and that of DIR, below HOME, can be longer.
on_images() {
  local program=$1 dir=$2 run status=0
  shift 2
  run=/run/images-$(sha256sum <<<"$dir" | cut -c 1-12)
  "$program" --root "$dir/storage" --runroot "$run" --storage-driver overlay "$@" || status=$?
  rm -rf "$run"
  return "$status"
}

# Needed because buildah leaves its storage mounted on itself.
unmount_images() { ! mountpoint -q "$1/storage/overlay" || umount "$1/storage/overlay"; }

# In a folder inside that of the other images, and based on them: these are removed and made again together.
make_environments() {
  local images=${1%/*} more=(--volume "$1/pip:/run/more:ro" --build-arg PIP_CONFIG_FILE=/run/more/pip.conf)
  make_environment_wheels "$1" "$images" &&
    build_image "$images" tensorflow "$BASE_IMAGE" "${more[@]}" --build-arg "TENSORFLOW=$TENSORFLOW scikit-learn" &&
    make_compile_image "$1" "$images" &&
    build_image "$images" deepspeed "$IMAGES/compile" "${more[@]}" &&
    make_compiled_image "$1" "$images" &&
    build_image "$images" horovod "$IMAGES/pytorch" "${more[@]}" --build-arg "HOROVOD=$HOROVOD $HOROVOD_IMPORTS" \
      --build-arg "COMPILE_IMAGE=$IMAGES/compile" && { unmount_images "$images" || true; } # a test may be building
}

# make_environment_wheels DIR IMAGES: downloads packages for the same Python as the other wheels. DeepSpeed and Horovod
# publish only sources, whose setup.py must run to give their metadata: Horovod's environment has its imports. If the
# existing wheel of Horovod is for the image's Python, it is used. pip's cache is off, as it may have DeepSpeed's wheel.
make_environment_wheels() {
  local python wheels=$1/pip/wheels locks=$CHECKOUT/docker/environments sources
  mkdir -p "$wheels" && python=$(basename "$2"/pip/wheels/torch-*.whl | sed 's/.*-cp3\([0-9]*\)-.*/3.\1/') &&
    sources=("$(horovod_dir)/bin/python" -m pip download --quiet --dest "$wheels" --no-cache-dir --no-deps --no-build-isolation) &&
    { cp "$(horovod_dir)"/wheels/horovod-*-"cp${python/./}"-*.whl "$wheels" || "${sources[@]}" "$HOROVOD"; } &&
    "${sources[@]}" --python-version "$python" --require-hashes --requirement "$locks/compile.lock" \
      --requirement "$locks/deepspeed.lock" &&
    "$PYTHON" -m pip download --quiet --dest "$wheels" --find-links "$2/pip/wheels" --only-binary=:all: \
      --python-version "$python" "$TENSORFLOW" scikit-learn einops &&
    printf '[global]\nno-index = true\nfind-links =\n  /run/pip/wheels\n  /run/more/wheels\n' >"$1/pip/pip.conf"
}

# make_compile_image DIR IMAGES: makes an image with a compiler and the PyTorch of the image that the result is for.
make_compile_image() {
  import_system "$2" "$IMAGES/tools" "${COMPILE_OPTIONS[@]}" &&
    derive_image "$1" "$2" compile "FROM $IMAGES/tools" "COPY --from=$IMAGES/pytorch /opt/env /opt/env" \
      'ENV PATH=/opt/env/bin:$PATH'
}

# make_compiled_image DIR IMAGES: makes an image with the extension that DeepSpeed would otherwise compile in every new
# container, because there is no GPU.
make_compiled_image() {
  derive_image "$1" "$2" deepspeed-compiled "FROM $IMAGES/deepspeed" \
    'ENV DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=/opt/extensions' \
    "RUN python -c 'from deepspeed.comm.torch import build_shm_op; build_shm_op()' && chmod -R a+rwX /opt/extensions"
}

# derive_image DIR IMAGES NAME LINE...: builds an image from the lines of a Dockerfile.
derive_image() {
  local context=$1/$3 images=$2 name=$3
  shift 3
  rm -rf "$context" && mkdir "$context" && printf '%s\n' "$@" >"$context/Dockerfile" &&
    on_images buildah "$images" bud --pull-never --format docker --isolation chroot --tag "$IMAGES/$name" "$context"
}

# import_system DIR NAME OPTION...: makes an image from the packages of this machine's apt sources, because there may
# be no registry of images.
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
    on_images podman "$dir" --tmpdir "$dir/tmp" import "$dir/image.tar" "$name" &&
    rm -rf "$dir/image.tar" "$dir/tmp"
}

# make_wheels DIR: downloads all packages that pip installs in the images, so that their builds need neither the network
# nor this machine's settings.
make_wheels() {
  local pip=("$PYTHON" -m pip download --quiet --dest "$1/pip/wheels" --only-binary=:all: --python-version "$IMAGE_PYTHON")
  mkdir -p "$1/pip" &&
    (cd "$CHECKOUT" && "${pip[@]}" --no-deps --require-hashes "${LOCKS[@]/#/--requirement=}") &&
    { "${pip[@]}" "${WHEELS[@]}" "torch==$TORCH+cpu" || "${pip[@]}" "${WHEELS[@]}" "torch==$TORCH"; } &&
    printf '[global]\nno-index = true\nfind-links = /run/pip/wheels\n' >"$1/pip/pip.conf"
}

# build_image DIR ENVIRONMENT BASE [ARGUMENT ...]: builds one of docker/environments.
build_image() {
  local dir=$1 environment=$2 base=$3
  shift 3
  on_images buildah "$dir" bud --pull-never --format docker --isolation chroot \
    --volume "$dir/pip:/run/pip:ro" --build-arg PIP_CONFIG_FILE=/run/pip/pip.conf \
    --build-arg "BASE_IMAGE=$base" "$@" --file "$CHECKOUT/docker/environments/$environment.Dockerfile" \
    --tag "$IMAGES/$environment" "$CHECKOUT"
}
