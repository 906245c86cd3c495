"""The page "Parked events" and the REST API, inside Airflow's web server, under ``/waybill``.

Airflow mounts the app of ``app`` and protects nothing of it, so each of these is done here:

I1  Every route requires a user who is signed in to Airflow (``guard``): there are no mounts.
I2  Every route requires a permission, and where it is about a partition, for that partition's team;
    what has no team is for those only who have the permission for all (``access.grants``).
I3  What changes something cannot be asked for by another site's page (``guard``).
I4  Replays and dry runs are DAG runs, started through Airflow's public API with the caller's own
    credentials (``runs``): Airflow's permissions, checks of parameters and audit log hold.
I5  Payloads leave masked (``waybill.parking.masking``), are never cached, and never run as script.

Nothing here decides about events: the library's ``ParkedEventsService`` does.
"""
