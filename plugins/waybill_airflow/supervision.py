"""What a task and a trigger share of supervising an application: the variable, and one look.

``waybill.clusters.supervise`` decides and acts; here is what only Airflow knows: the variable
``waybill_stream_<cluster>``, and the connection of Spark.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from airflow.sdk import Variable

from waybill_airflow.spark_submit import spark_backends

if TYPE_CHECKING:
    from waybill.clusters import Application, ApplicationKind, Look
    from waybill.settings import Settings

_LOG = logging.getLogger(__name__)
Request = Literal["run", "stop"]
REQUESTS: dict[str, Request] = {"run": "run", "stop": "stop"}


def variable_of(cluster: str) -> str:
    """Return the name of the variable that stops a cluster's applications."""
    return f"waybill_stream_{cluster}"


def read_request(cluster: str) -> Request | None:
    """Return what the variable asks for; it is not there: ``run``; other words ask for nothing."""
    name = variable_of(cluster)
    request = str(Variable.get(name, default="run")).strip().lower()
    if request in REQUESTS:
        return REQUESTS[request]
    _LOG.error("variable %s is %r, allowed are run and stop; nothing changes", name, request)
    return None


def is_news(request: Request | None, application: Application) -> bool:
    """Tell whether a request changes what is wanted.

    That there is no variable takes back what the variable said, and not what a person said with
    ``waybill clusters stop``.
    """
    if request == "stop":
        return application.wanted == "running"
    by_variable = application.wanted_by == variable_of(application.cluster)
    return request == "run" and application.wanted == "stopped" and by_variable


def look_at(settings: Settings, kind: ApplicationKind, cluster: str) -> Look:
    """Write down what the variable asks for, look at the application once, do what follows.

    :raises waybill.errors.InputError: it cannot be started as things are.
    :raises waybill.errors.RetryError: the tracker does not answer.
    """
    from waybill.clusters import read_application, want_application
    from waybill.services import supervise_application
    from waybill.storage import open_tracker

    request = read_request(cluster)
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        if is_news(request, read_application(connection, kind, cluster)):
            wanted: Literal["running", "stopped"] = "running" if request == "run" else "stopped"
            want_application(connection, kind, cluster, wanted, by=variable_of(cluster))
    return supervise_application(settings, kind, cluster, spark_backends(settings))


__all__ = ["Request", "is_news", "look_at", "read_request", "variable_of"]
