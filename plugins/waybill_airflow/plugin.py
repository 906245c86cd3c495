"""The pages, registered with Airflow by the entry point ``airflow.plugins`` of this package.

Plugins load in every component and in every task, so nothing is imported here but the base class;
what a web server needs goes into properties that import late.
"""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin


class WaybillPlugin(AirflowPlugin):
    """Waybill in Airflow: its pages, and the REST API under ``/waybill``."""

    name = "waybill"
    external_views: ClassVar[list[dict[str, Any]]] = [
        {
            "name": "Overview",
            "href": "waybill/overview",
            "destination": "nav",
            "url_route": "waybill-overview",
            "nav_top_level": True,
        },
        {  # the address of "Overview" before: in no menu
            "name": "Pipelines",
            "href": "waybill/pipelines",
            "destination": "base",
            "url_route": "waybill-pipelines",
        },
        {
            "name": "Sources",
            "href": "waybill/sources",
            "destination": "nav",
            "url_route": "waybill-sources",
            "category": "browse",
        },
        {
            "name": "Parked events",
            "href": "waybill/parked",
            "destination": "nav",
            "url_route": "waybill-parked",
            "category": "browse",
        },
        {
            "name": "Balance",
            "href": "waybill/balance",
            "destination": "nav",
            "url_route": "waybill-balance",
            "category": "browse",
        },
        {
            "name": "Clusters",
            "href": "waybill/clusters",
            "destination": "nav",
            "url_route": "waybill-clusters",
            "category": "browse",
        },
        {
            "name": "Capacity",
            "href": "waybill/capacity",
            "destination": "nav",
            "url_route": "waybill-capacity",
            "category": "browse",
        },
        {
            "name": "Where is that event?",
            "href": "waybill/trails",
            "destination": "nav",
            "url_route": "waybill-trails",
            "category": "browse",
        },
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Return the web app; only the API server asks."""
        from waybill_airflow.web.app import PREFIX, app

        return [{"app": app, "url_prefix": PREFIX, "name": "Waybill"}]
