"""Parked events beyond one replay: lists, marks, holds, clean-up, and owners who are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from waybill.settings import Settings
from waybill.storage import open_log, open_owned_objects, open_tracker, refuse_foreign_bucket

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.notices import SendReport, SentNotice, WaitingNotice
    from waybill.parking import (
        AutoReplay,
        CleanUpReport,
        ParkedGroup,
        ParkedGroupRequest,
        RecheckReport,
        RefreshReport,
    )
    from waybill.recovery import LostIds, LostParked, ParkedRecovery
    from waybill.replay import AutoLaunch, ProbeReport
from waybill.services.environment import opened_parking


def recheck_quarantine(
    settings: Settings,
    decision: Decision,
    *,
    pipeline: str | None = None,
    object_key: str | None = None,
) -> RecheckReport:
    """Park quarantined segments again whose bytes are right again: a pipeline's, or all.

    Says of all parked objects which are gone, or of one how it is.
    """
    with opened_parking(settings) as parking:
        pipeline_id = None if pipeline is None else parking.pipeline_id(pipeline)
        return parking.recheck(pipeline_id, decision, object_key=object_key)


def lost_parked(settings: Settings) -> list[LostParked]:
    """Return the parked events in quarantine: their objects are gone or damaged."""
    from waybill import recovery

    with open_tracker(settings.tracker) as tracker:
        return recovery.lost_parked(tracker)


def lost_parked_ids(settings: Settings, found: Sequence[LostParked]) -> list[LostIds]:
    """Return the ids of lost parked events from their traces, one answer for each.

    Raises:
        RetryError: the tracker or the trace store is away.
    """
    from waybill.recovery import parked_ids
    from waybill.tracing import open_traces

    with open_tracker(settings.tracker) as tracker:
        return parked_ids(tracker, open_traces(settings), found)


def recover_lost_parked(settings: Settings, *, again: bool = False) -> ParkedRecovery:
    """Make parked events in quarantine again from Kafka; with ``again`` also what has a problem.

    Raises:
        RetryError: Kafka, the store or the tracker is away.
    """
    from waybill import recovery
    from waybill.processing import shared_sandbox

    with open_tracker(settings.tracker) as tracker:
        found = recovery.lost_parked(tracker)
        if not any(again or not one.problem for one in found):
            return recovery.ParkedRecovery()
        objects = open_owned_objects(settings)
        find = recovery.failures_at(tracker, fetch=objects.get, code=shared_sandbox(settings))
        log = open_log(settings.kafka)
        return recovery.recover_parked(tracker, objects, log, find, again=again)


def parked_partitions(settings: Settings) -> list[ParkedGroup]:
    """Return all parked partitions."""
    with opened_parking(settings) as parking:
        return parking.partitions()


def ended_replays(settings: Settings, partition_ids: Sequence[int]) -> dict[int, str]:
    """Return {partition id: id of its replay that ended last}."""
    from waybill.parking import read_ended

    with open_tracker(settings.tracker) as tracker:
        return read_ended(tracker, partition_ids)


def set_auto_replay(
    settings: Settings, decision: Decision, request: ParkedGroupRequest, *, on_change: str | None
) -> AutoReplay | None:
    """Mark a partition to replay when its cause changes; ``on_change`` None: take the mark away."""
    from waybill.parking import Parking, remove_mark
    from waybill.replay import answering, mark_for_auto_replay

    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_owned_objects(settings))
        found = parking.find(**request.names)
        if on_change is None:
            remove_mark(tracker, found.id, decision)
            return None
        healthy = answering(settings.destinations, settings.s3)
        return mark_for_auto_replay(
            tracker, parking, found.id, decision, on_change=on_change, healthy=healthy
        )


def due_auto_replays(settings: Settings) -> list[AutoLaunch]:
    """Return the replays that changed causes call for."""
    from waybill.parking import Parking
    from waybill.replay import answering, due_auto_replays

    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_owned_objects(settings))
        healthy = answering(settings.destinations, settings.s3)
        return due_auto_replays(tracker, parking, healthy=healthy)


def keep_auto_replays(settings: Settings, notes: Sequence[Mapping[str, Any]]) -> int:
    """Keep which replays were launched; returns how many marks were moved on."""
    from waybill.replay import launched

    with open_tracker(settings.tracker) as tracker:
        return sum(launched(tracker, **note) for note in notes)


def clean_up_parked_files(settings: Settings, *, grace_s: float | None = None) -> CleanUpReport:
    """Delete parked objects that are all dead past the grace; rewrite mostly dead ones."""
    own = settings.parking
    refuse_foreign_bucket(settings)
    with opened_parking(settings) as parking:
        return parking.clean_up(
            grace_s=own.clean_up_grace_s if grace_s is None else grace_s,
            rewrite_below=own.rewrite_below,
            rewrite_from_bytes=own.rewrite_from_bytes,
        )


def held_to_replay(settings: Settings) -> list[ParkedGroup]:
    """Return the groups whose held events are to go back now: nothing holds their pipelines."""
    from waybill.parking import Parking, to_replay

    with open_tracker(settings.tracker) as tracker:
        return Parking(tracker, open_owned_objects(settings)).partitions_of(to_replay(tracker))


def probe_held_pipelines(settings: Settings) -> ProbeReport:
    """Probe the held pipelines that are due, release those that pass, list what is to go back."""
    from waybill.parking import Parking
    from waybill.processing.sandbox import Sandbox
    from waybill.replay import probe_held
    from waybill.storage import payloads_at_once

    objects = open_owned_objects(settings)
    sandbox = Sandbox(settings.sandbox, timeout_s=settings.spark.event_timeout_s)
    with closing(sandbox), open_tracker(settings.tracker) as tracker:
        rate = settings.parking.probe_pass_rate
        return probe_held(
            tracker,
            Parking(tracker, objects),
            pass_rate=rate,
            code=sandbox,
            fetch=payloads_at_once(objects),
            destinations=settings.destinations,
        )


def refresh_tracker(settings: Settings, *, grace_s: float | None = None) -> RefreshReport:
    """Reconcile tracker and bucket, fold the ledger into minutes, remove old questions."""
    from waybill.ledger import fold
    from waybill.parking import Parking
    from waybill.trails import expire

    grace = settings.parking.garbage_grace_s if grace_s is None else grace_s
    refuse_foreign_bucket(settings)
    with open_tracker(settings.tracker) as tracker:
        fold(tracker)
        expire(tracker, keep_days=settings.traces.keep_questions_days)
        kept_s = settings.retention.staged_days * 86_400
        parking = Parking(tracker, open_owned_objects(settings))
        return parking.refresh(grace_s=grace, staged_kept_s=kept_s)


def send_notices(settings: Settings) -> SendReport:
    """Tell owners what waits to be told, and write the digests that are due."""
    from waybill.notices import send_notices as send

    with open_tracker(settings.tracker) as tracker:
        return send(tracker, settings.notices)


def sent_notices(settings: Settings, most: int) -> list[SentNotice]:
    """Return what owners were told, the newest first: so many lines at most."""
    from waybill.notices import sent_notices

    with open_tracker(settings.tracker) as tracker:
        return sent_notices(
            tracker,
            most,
            error_messages=settings.notices.error_messages,
            personal_messages=settings.notices.personal_messages,
        )


def waiting_notices(settings: Settings) -> list[WaitingNotice]:
    """Return what owners are still to be told, and what keeps it."""
    from waybill.notices import waiting_notices

    with open_tracker(settings.tracker) as tracker:
        return waiting_notices(tracker)


def send_test_notice(settings: Settings, owner: str, *, who: str) -> dict[str, str]:
    """Send an owner a test message by each sink; returns {sink: problem, empty if none}."""
    from waybill.notices import send_test

    return send_test(settings.notices, owner, who=who)
