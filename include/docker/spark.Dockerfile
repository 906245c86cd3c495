# The official Spark image for workers: Python tasks need the driver's Python version and packages.
FROM ghcr.io/astral-sh/uv:0.9.11 AS uv

FROM apache/spark:4.0.5-scala2.13-java17-python3-ubuntu
USER root
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_PYTHON_INSTALL_DIR=/opt/python
WORKDIR /opt/waybill
COPY requirements.txt ./
# The image's own Python is 3.10; executors must have the driver's 3.11.
RUN uv venv --python 3.11 .venv \
    && uv pip install --no-cache --no-deps --require-hashes -r requirements.txt
COPY pyproject.toml README.md ./
COPY include include
COPY plugins plugins
# A script, not a link: a virtual environment is found by the path of its interpreter.
RUN uv pip install --no-cache --no-deps . \
    && printf '#!/bin/sh\nexec /opt/waybill/.venv/bin/python "$@"\n' > python \
    && chmod 0755 python \
    && install -d -o 50000 -g 0 -m 0775 /var/lib/waybill
# Airflow's user: both write to the shared state folder.
USER 50000:0
WORKDIR /tmp
