"""Waybill inside Airflow: operators that declare, while the library does the work."""
