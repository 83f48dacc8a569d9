# DeepSpeed, on an image that has PyTorch (pytorch.Dockerfile, or any other). Its operations are compiled by
# DeepSpeed itself when a script first uses them; an image in which that can happen needs CUDA's compiler.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
USER 0:0
ARG PIP_CONFIG_FILE
ARG DEEPSPEED="deepspeed==0.19.8"
RUN DS_BUILD_OPS=0 python3 -m pip install --no-cache-dir ${DEEPSPEED}
