"""Registers Waybill with Airflow. The only file here that Airflow runs as a module of its own.

The code is in the package ``waybill_airflow`` beside it. Plugins load in every component and in
every task, so nothing is imported here but the base class; what a web server needs goes into
properties that import late.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class WaybillPlugin(AirflowPlugin):
    """Waybill in Airflow: today its operators; pages come with their own app."""

    name = "waybill"
