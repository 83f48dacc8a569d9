# TensorFlow in an environment of its own, /opt/env, first on PATH. docker/Dockerfile puts the launcher on top.
# TENSORFLOW is what pip installs: the versions and hashes of tensorflow.lock, or other words of yours.
ARG BASE_IMAGE=mcr.microsoft.com/azureml/openmpi5.0-cuda12.8-ubuntu24.04:latest
FROM ${BASE_IMAGE}
USER 0:0
ARG PIP_CONFIG_FILE
ARG TENSORFLOW="--require-hashes --only-binary :all: --requirement /opt/env/tensorflow.lock"
RUN python3 -c "import ensurepip, venv" 2>/dev/null || { apt-get update && \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv && \
      rm -rf /var/lib/apt/lists/*; }
COPY docker/environments/tensorflow.lock /opt/env/
RUN python3 -m venv --system-site-packages /opt/env && \
    /opt/env/bin/python -m pip install --no-cache-dir ${TENSORFLOW}
ENV PATH=/opt/env/bin:$PATH
