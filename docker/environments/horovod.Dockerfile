# Horovod, on an image that has PyTorch. It is compiled for that PyTorch in a stage that is thrown away; with
# COMPILE_IMAGE on another image, which has the same PyTorch and what the base lacks: CUDA's compiler, for example.
# What pip installs to compile it is that of compile.lock; Horovod and what it imports, that of horovod.lock.
ARG BASE_IMAGE
ARG COMPILE_IMAGE=${BASE_IMAGE}
FROM ${COMPILE_IMAGE} AS compile
USER 0:0
ARG PIP_CONFIG_FILE
RUN missing=; \
    command -v g++ >/dev/null || missing="$missing g++"; \
    command -v make >/dev/null || missing="$missing make"; \
    [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || missing="$missing python3-dev"; \
    if [ -n "$missing" ]; then apt-get update && \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; fi
# NVIDIA's images set it: it is for what jobs import, and has other versions than the locks.
ENV PIP_CONSTRAINT=
COPY docker/environments/compile.lock docker/environments/horovod.lock /tmp/
RUN python3 -m pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /tmp/compile.lock
# Horovod's own cmake asks for C++14, and PyTorch's headers are C++17: the last -std on a line wins.
RUN printf '#!/bin/sh\nexec g++ "$@" -std=gnu++17\n' >/usr/local/bin/g++17 && chmod +x /usr/local/bin/g++17
ARG HOROVOD="--require-hashes --requirement /tmp/horovod.lock"
ARG HOROVOD_WITH="HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1"
RUN env CXX=/usr/local/bin/g++17 ${HOROVOD_WITH} \
    python3 -m pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir /wheels ${HOROVOD}

FROM ${BASE_IMAGE}
USER 0:0
ARG PIP_CONFIG_FILE
COPY --from=compile /wheels /tmp/wheels
# What it imports stays as the base has it, if that is new enough.
RUN python3 -m pip install --no-cache-dir --no-index --find-links /tmp/wheels --upgrade horovod && rm -r /tmp/wheels
