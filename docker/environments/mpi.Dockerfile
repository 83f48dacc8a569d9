# What a job by mpirun needs besides its base: mpirun, and mpi4py in /opt/env. No host key is inside.
ARG BASE_IMAGE=mcr.microsoft.com/azureml/openmpi5.0-cuda12.8-ubuntu24.04:latest
FROM ${BASE_IMAGE}
USER 0:0
ARG PIP_CONFIG_FILE
ARG MPI4PY="--require-hashes --only-binary :all: --requirement /opt/env/mpi.lock"
ENV PATH=/opt/env/bin:$PATH
RUN missing=; \
    command -v mpirun >/dev/null || missing="$missing openmpi-bin"; \
    python3 -c "import ensurepip, venv" 2>/dev/null || missing="$missing python3-venv"; \
    if [ -n "$missing" ]; then apt-get update && \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing && \
      rm -rf /var/lib/apt/lists/*; fi && \
    rm -f /etc/ssh/ssh_host_*
COPY docker/environments/mpi.lock /opt/env/
RUN { [ -x /opt/env/bin/python ] || python3 -m venv --system-site-packages /opt/env; } && \
    /opt/env/bin/python -m pip install --no-cache-dir ${MPI4PY}
