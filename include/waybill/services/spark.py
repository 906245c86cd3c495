"""The Spark applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.settings import Settings

if TYPE_CHECKING:
    from waybill.services.applications import ApplicationStatus, Kind


def start_application(settings: Settings, kind: Kind, cluster: str) -> int:
    """Start a Spark application unless it runs; returns its pid."""
    from waybill.services import applications

    return applications.start(settings, kind, cluster)


def application_status(settings: Settings, kind: Kind, cluster: str) -> ApplicationStatus:
    """Tell whether a Spark application runs."""
    from waybill.services import applications

    return applications.status(settings, kind, cluster)


def application_last_words(settings: Settings, kind: Kind, cluster: str) -> str:
    """Return the end of an application's log."""
    from waybill.services import applications

    return applications.last_words(settings, kind, cluster)


def stop_application(settings: Settings, kind: Kind, cluster: str) -> bool:
    """Stop a Spark application; False when none runs."""
    from waybill.services import applications

    return applications.stop(settings, kind, cluster)
