"""Applications on a Spark cluster, by Airflow's provider of Spark and a connection of it.

================================  ==================================================================
master and deploy mode of the     what an application is
connection
================================  ==================================================================
``spark://…``, ``local[n]``,      a process of this host (``spark-submit``, client mode), asked
``yarn``, ``k8s://…``; client     after by pid and start time: the provider makes its command, but
                                  does not run it, since it would end with the task
``yarn``; cluster                 a YARN application, asked after and killed by YARN's REST API
``k8s://…``; cluster              a driver pod, asked after and killed by the API of Kubernetes
``spark://…``; cluster            refused: Spark runs no Python driver so
================================  ==================================================================

In cluster mode nothing secret is submitted: driver and executors find Waybill, and the driver its
``WAYBILL_*``, where they run (an image, a node's environment, secrets by ``--spark-conf``).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill_airflow.airflow_internals import (
    kill_submitted,
    spark_connection,
    spark_submit_command,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    from waybill.clusters import Application, Backend, VirtualCluster, Word
    from waybill.settings import Settings

SPARK = "spark"
"""Name of the backend whose applications run on a cluster, driver and all."""
_SPARKS_OWN = re.compile(r"application_\d+_\d+|[a-z0-9.-]+:[a-z0-9.-]+")
"""An id of YARN; namespace and pod. What else there is, an application wrote whose starter died."""
_FORGOTTEN = "HTTP 404"
"""A resource manager that was started anew may know nothing of an application that still runs."""
_WORDS: Mapping[str, Word] = {"UNKNOWN": "no answer", "NOTFOUND": "unknown"}
"""Of Kubernetes: the pod's node does not answer; there is no such pod, here and now."""


def spark_backends(settings: Settings) -> dict[str, Backend]:
    """Return the backend that the connection of Spark asks for; none: ``connection_id`` is empty.

    :raises waybill.errors.InputError: there is no such connection, or what it asks for cannot be.
    """
    from waybill.clusters import PROCESS
    from waybill.services import ProcessBackend

    if not settings.spark.connection_id:
        return {}
    connection = spark_connection(_hook(settings, "waybill", []))
    if connection["deploy_mode"] != "cluster":
        return {
            PROCESS: ProcessBackend(
                settings,
                command=lambda script, arguments: _command(settings, script, arguments),
                environment=_with_spark_submit(),
            )
        }
    refuse_untrackable(settings.spark.connection_id, connection)
    return {SPARK: SubmittedBackend(settings)}


def refuse_untrackable(name: str, connection: Mapping[str, Any]) -> None:
    """Refuse a connection in cluster mode whose applications nobody could ask after.

    :raises waybill.errors.InputError: a standalone cluster; Kubernetes without a namespace.
    """
    from waybill.errors import InputError

    master = connection["master"]
    if master.startswith("spark://"):
        raise InputError(
            f"connection {name!r} asks for cluster mode on {master}: Spark runs no Python driver "
            "on a standalone cluster; set its deploy-mode to client"
        )
    if master.startswith("k8s://") and not connection["namespace"]:
        raise InputError(f"connection {name!r} names no namespace: set it in its extra")


def _command(settings: Settings, script: Path, arguments: Sequence[str]) -> list[str]:
    hook = _hook(settings, f"waybill-{script.stem}-{arguments[-1]}", arguments)
    return spark_submit_command(hook, str(script))


def _hook(settings: Settings, name: str, arguments: Sequence[str]) -> SparkSubmitHook:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from waybill.errors import InputError

    connection = settings.spark.connection_id
    try:
        SparkSubmitHook.get_connection(connection)
        return SparkSubmitHook(
            conn_id=connection,
            name=name,
            jars=_jars(settings),
            driver_memory=settings.spark.driver_memory,
            application_args=list(arguments),
        )
    except NameError as error:  # the provider's own name for what it could not import
        raise InputError(_NO_KUBERNETES) from error
    except Exception as error:  # the provider raises AirflowException and ValueError of many kinds
        raise InputError(f"connection {connection!r} of Spark: {error}") from error


_NO_KUBERNETES = (
    "applications on Kubernetes need the package apache-airflow-providers-cncf-kubernetes on "
    "Airflow's workers"
)


def _jars(settings: Settings) -> str:
    return ",".join(str(path) for path in sorted(settings.spark.jars_dir.resolve().glob("*.jar")))


def _with_spark_submit() -> dict[str, str]:
    """Return a PATH with the ``spark-submit`` of this Python first: the version of its pyspark."""
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}


class SubmittedBackend:
    """Applications that YARN or Kubernetes runs, driver and all.

    :param settings: with the connection and the tracker.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self, application: Application) -> str:
        """Submit it, and return the id of the YARN application, or namespace and pod.

        :raises waybill.errors.InputError: the connection lacks what tracking needs.
        :raises waybill.errors.RetryError: it was not accepted.
        """
        from waybill.errors import InputError, RetryError

        operator = self._operator(application)
        try:
            return str(operator.submit_job({}))
        except (NameError, ValueError) as error:
            words = _NO_KUBERNETES if isinstance(error, NameError) else str(error)
            raise InputError(words) from error
        except Exception as error:  # AirflowException, RuntimeError, OSError: the cluster's
            raise RetryError(f"spark-submit: {error}") from error

    def ask(self, application: Application) -> Word:
        """Tell what the cluster says of it; that it is dead counts once it is silent, too.

        :raises waybill.errors.RetryError: the cluster does not answer.
        """
        if not _SPARKS_OWN.fullmatch(application.external_id):
            return "unknown"
        from waybill.errors import RetryError

        operator = self._operator(application)
        try:
            status = operator.get_job_status(application.external_id, {})
        except Exception as error:
            if _FORGOTTEN in str(error):
                return "unknown"
            raise RetryError(f"{application.external_id}: {error}") from error
        if word := _WORDS.get(status.upper()):
            return word
        if operator.is_job_active(status):
            return "alive"
        return "dead" if application.is_silent else "no answer"

    def stop(self, application: Application) -> None:
        """Leave it to the application, which reads its row with each report."""

    def kill(self, application: Application) -> None:
        """Have the cluster kill it.

        :raises waybill.errors.RetryError: the cluster does not answer.
        """
        from waybill.errors import RetryError

        if not _SPARKS_OWN.fullmatch(application.external_id):
            return
        operator = self._operator(application)
        try:
            kill_submitted(operator, application.external_id)
        except Exception as error:
            raise RetryError(f"{application.external_id}: {error}") from error

    def last_words(self, application: Application) -> str:
        """Return where its log is."""
        return f"see the log of {application.external_id} on the cluster"

    def _operator(self, application: Application) -> SparkSubmitOperator:
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

        spark = self._settings.spark
        kind, cluster = application.kind, application.cluster
        return SparkSubmitOperator(
            task_id=f"{kind}-{cluster}"[:200],
            application=self._script(application),
            conn_id=spark.connection_id,
            name=f"waybill-{kind}-{cluster}",
            conf=submitted_conf(self._settings, application, self._own(application)),
            jars=_jars(self._settings),
            driver_memory=spark.driver_memory,
            application_args=["--epoch", str(application.epoch), "--cluster", cluster],
            yarn_track_via_rm_api=True,
            track_driver_via_k8s_api=True,
        )

    def _script(self, application: Application) -> str:
        from waybill.services import application_script

        if self._settings.spark.jobs_uri:
            return f"{self._settings.spark.jobs_uri.rstrip('/')}/{application.kind}.py"
        return str(application_script(self._settings, application.kind))

    def _own(self, application: Application) -> VirtualCluster:
        from waybill.clusters import cluster_settings
        from waybill.storage import open_tracker

        with open_tracker(self._settings.tracker) as tracker:
            return cluster_settings(tracker, application.cluster)


def submitted_conf(
    settings: Settings, application: Application, own: VirtualCluster
) -> dict[str, Any]:
    """Return the configuration of a submission: a cluster's cores, memory and own settings.

    YARN and Kubernetes know executors, not cores: as many as have the cores together.
    """
    spark = settings.spark
    most = own.cores or spark.processing_max_cores
    if application.kind == "loading":
        most = spark.loading_max_cores
    each = own.spark_conf.get("spark.executor.cores", "1")
    cores = int(each) if each.isdecimal() and int(each) else 1
    conf: dict[str, Any] = {
        "spark.executor.cores": str(cores),
        "spark.executor.instances": str(max(1, most // cores)),
        **own.spark_conf,
        "spark.cores.max": str(most),
        "spark.yarn.maxAppAttempts": "1",  # YARN's own next attempt would have the same epoch
    }
    if own.memory_mb is not None:
        conf["spark.executor.memory"] = f"{own.memory_mb}m"
    return conf


__all__ = ["SPARK", "SubmittedBackend", "spark_backends", "submitted_conf"]
