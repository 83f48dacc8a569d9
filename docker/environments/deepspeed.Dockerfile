# DeepSpeed, on an image that has PyTorch (pytorch.Dockerfile, or any other). Its operations are compiled by
# DeepSpeed itself when a script first uses them; an image in which that can happen needs CUDA's compiler.
# The wheels of it and of what it imports, but torch and numpy, are made in a stage that is thrown away, from files
# whose hashes are in deepspeed.lock.
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS compile
USER 0:0
ARG PIP_CONFIG_FILE
# NVIDIA's images set it: it is for what jobs import, and has other versions than the locks.
ENV PIP_CONSTRAINT=
COPY docker/environments/compile.lock docker/environments/deepspeed.lock /tmp/
RUN python3 -m pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /tmp/compile.lock
ARG DEEPSPEED="--require-hashes --requirement /tmp/deepspeed.lock"
RUN DS_BUILD_OPS=0 \
    python3 -m pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir /wheels ${DEEPSPEED}

FROM ${BASE_IMAGE}
USER 0:0
ARG PIP_CONFIG_FILE
COPY --from=compile /wheels /tmp/wheels
# What it imports stays as the base has it, if that is new enough.
RUN python3 -m pip install --no-cache-dir --no-index --find-links /tmp/wheels --upgrade deepspeed && rm -r /tmp/wheels
