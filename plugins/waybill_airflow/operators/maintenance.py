"""Keep bucket, tracker and traces tidy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from waybill_airflow.failures import as_task_failures, read_settings

if TYPE_CHECKING:
    from airflow.sdk import Context


class _GraceOperator(BaseOperator):
    """An operator with ``grace_s`` (templated), which overrides a setting."""

    template_fields = ("grace_s",)

    def __init__(self, *, grace_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grace_s = grace_s


class CleanUpParkedFilesOperator(_GraceOperator):
    """Delete the parked files whose segments are all replayed or discarded.

    A file with one segment that is still parked stays whole. Safe to kill and to retry.

    :param grace_s: seconds that such a file is kept after its last change; ``None``: the setting
        ``parking.clean_up_grace_s`` (templated).
    :raises waybill.errors.RetryError: the object store or the tracker did not answer; or
        (``NotDeletedError``) some files could not be deleted, and all others were.
    :returns: the ``CleanUpReport`` as a dict.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Clean up, and return what was deleted."""
        with as_task_failures():
            from waybill.services import clean_up_parked_files

            return clean_up_parked_files(read_settings(), grace_s=self.grace_s).to_json()


class ApplyRetentionOperator(BaseOperator):
    """Trim what grows, as the settings ``retention`` say. Safe to kill and to retry.

    :raises waybill.errors.RetryError: some of it could not be done now; the rest was.
    :returns: the ``RetentionReport`` as a dict.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Trim, and return what went."""
        with as_task_failures():
            from waybill.services import apply_retention, retention_failed

            report = apply_retention(read_settings())
            if error := retention_failed(report):
                raise error
            return report.to_json()


class RefreshTrackerOperator(_GraceOperator):
    """Compare tracker and bucket: remove garbage objects, report rows whose object is gone.

    A missing object is reported, never repaired by deleting its row. Then the tables of undeployed
    pipelines are dropped where a destination refused it before. Safe to kill and to retry.

    :param grace_s: seconds that an object which no row names is left alone; ``None``: the setting
        ``parking.garbage_grace_s`` (templated).
    :raises waybill.errors.RetryError: the object store or the tracker did not answer; or
        (``NotDeletedError``) some objects could not be deleted, and all else was done.
    :returns: the ``RefreshReport`` as a dict, and ``drops``: an ``UndeployReport`` each.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Refresh, and return what was found."""
        with as_task_failures():
            from waybill.errors import NotDeletedError
            from waybill.services import finish_drops, refresh_tracker

            settings = read_settings()
            try:
                report = refresh_tracker(settings, grace_s=self.grace_s).to_json()
            except NotDeletedError:
                finish_drops(settings)
                raise
            return report | {"drops": [one.to_json() for one in finish_drops(settings)]}


class CompactTracesOperator(BaseOperator):
    """Move shipped traces into the buckets by which they are looked up.

    Safe to kill, to retry and to run twice at once: an hour that a dead run held is taken over ten
    minutes after it was last heard of.

    :raises AirflowFailException: an object is damaged; its hour stays as it was, all others were
        compacted before that.
    :raises waybill.errors.RetryError: the object store did not answer.
    :returns: the ``CompactionReport`` as a dict.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Compact, and return what was done."""
        from airflow.sdk.exceptions import AirflowFailException

        with as_task_failures():
            from waybill.services import compact_traces

            report = compact_traces(read_settings())
        if report.damaged:
            raise AirflowFailException("\n".join(report.damaged))
        return report.to_json()
