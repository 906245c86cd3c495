# The official Airflow image with Waybill, its pins and a Java runtime: every Airflow service runs it.
FROM apache/airflow:3.3.2-python3.11

USER root
# The Spark driver of a virtual cluster runs in the worker that supervises it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o airflow -g root -m 0775 /opt/waybill /var/lib/waybill \
    && install -d -o airflow -g root -m 0700 /var/lib/s3-tls
USER airflow

# No resolver: pip would bring back pyspark-client, which writes over pyspark's files.
COPY --chown=airflow:root requirements.txt /opt/waybill/requirements.txt
RUN pip install --no-cache-dir --no-deps --require-hashes -r /opt/waybill/requirements.txt

WORKDIR /opt/waybill
COPY --chown=airflow:root pyproject.toml README.md ./
COPY --chown=airflow:root include include
COPY --chown=airflow:root plugins plugins
RUN pip install --no-cache-dir --no-deps . \
    && python -c "from pathlib import Path; from waybill.stack.jars import ensure; ensure(Path('jars'))" \
    && ln -s "$(command -v python)" python
COPY --chown=airflow:root spark_jobs spark_jobs
COPY --chown=airflow:root dags dags
WORKDIR /opt/airflow
