"""Routes that look: nothing here changes anything but the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from waybill.access import Access
from waybill.errors import InputError
from waybill.events import CATALOGUE, STAGES, dumps, error_type, window_edge
from waybill.parking import ParkedFilter, Sort
from waybill_airflow.web import models
from waybill_airflow.web.event_view import shown_event
from waybill_airflow.web.guard import PartitionDownloader, PartitionViewer, Viewer
from waybill_airflow.web.parameters import either
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["looking"])

_NO_PARTITION = models.problems(_404="There is no such partition.")
_MOST_TIMELINES = 200
_MOST_DIGITS = 18
"""Of an id: fewer than those of a 64-bit number."""
_MEDIA = {"jsonl.zst": "application/zstd", "jsonl": "application/x-ndjson", "csv": "text/csv"}

Since = Annotated[str | None, Query(description="Event time from, RFC 3339; UTC without a zone.")]
Until = Annotated[str | None, Query(description="Event time before.")]
_OLDER = Field(
    None,
    description="The older name of the parameter that ends so.",
    json_schema_extra={"deprecated": True},
)
Older = Annotated[
    str | None, Query(deprecated=True, description="The older name of the parameter that ends so.")
]


class PartitionsQuery(ParkedFilter):
    """Which partitions, and how the page of them is cut."""

    model_config = ConfigDict(extra="ignore")

    held: bool = Field(default=False, description="Only with events parked or replaying now.")
    sort: Sort = Field("name", description="In which order.")
    descending: bool = Field(default=False, description="The last first.")
    limit: int = Field(50, ge=1, le=500, description="Most partitions.")
    after: str | None = Field(None, description="`next` of the page before.")
    event_since: datetime | None = _OLDER
    event_until: datetime | None = _OLDER

    @field_validator("event_since", "event_until", mode="before")
    @classmethod
    def _edge(cls, value: str | None, info: ValidationInfo) -> datetime | None:
        return window_edge(value, str(info.field_name))

    @property
    def filter(self) -> ParkedFilter:
        """Return the filter alone, older names taken for newer ones."""
        own = {name: getattr(self, name) for name in ParkedFilter.model_fields}
        own["since"] = either("since", own["since"], "event_since", self.event_since)
        own["until"] = either("until", own["until"], "event_until", self.event_until)
        return ParkedFilter.of(own)


@router.get("/me", summary="Who I am and what I may do")
def me(access: Viewer) -> models.Me:
    """Return the signed-in user's name, teams and permissions."""
    teams = access.teams("view")
    return models.Me(
        user=access.user,
        teams="all" if teams is None else list(teams),
        permissions=access.permissions(),
        everywhere=sorted(access.everywhere),
        by_team={team: sorted(granted) for team, granted in sorted(access.by_team.items())},
    )


@router.get("/catalogue", summary="Stages and error types")
def catalogue(_access: Viewer) -> models.Catalogue:
    """Return every stage, and every error type with what it means and what to do."""
    rows = [models.ErrorTypeOut(**asdict(row)) for row in CATALOGUE.values()]
    return models.Catalogue(stages=list(STAGES), error_types=rows)


@router.get("/names", summary="Pipelines")
def names(access: Viewer) -> models.Names:
    """Return the deployed pipelines that the user may see."""
    rows = [models.PipelineName(**row) for row in parked_events().names(access.teams("view"))]
    return models.Names(pipelines=rows)


@router.get("/partitions", summary="Partitions that match")
def partitions(access: Viewer, query: Annotated[PartitionsQuery, Query()]) -> models.Partitions:
    """Return a page of the user's teams' partitions that match, and the sum of all of them."""
    request = query.filter
    wanted = request.partitions(
        _pipeline_id(access, request.pipeline), held=query.held, teams=access.teams("view")
    )
    page = parked_events().parking.page(
        wanted,
        sort=query.sort,
        descending=query.descending,
        limit=query.limit,
        after=query.after,
    )
    number, parked, size = parked_events().parking.totals(wanted)
    return models.Partitions(
        partitions=parked_events().shown(access, page.partitions),
        next=page.next,
        total=models.Total(partitions=number, parked=parked, bytes=size),
    )


def _pipeline_id(access: Access, name: str | None) -> str | None:
    """Return the id of a pipeline that the user may see; another's is as unknown as none."""
    if name is None:
        return None
    visible = parked_events().names(access.teams("view"))
    by_name = {row["name"]: row["id"] for row in visible}
    return by_name.get(name, name)


@router.get("/timelines", summary="When events were parked")
def timelines(
    access: Viewer,
    ids: Annotated[str, Query(description="Up to 200 ids of partitions, with commas between.")],
    parked_since: Annotated[
        str | None, Query(description="Parked from; a day before `parked_until`.")
    ] = None,
    parked_until: Annotated[
        str | None, Query(description="Parked before; now if not given.")
    ] = None,
    since: Older = None,
    until: Older = None,
) -> dict[str, models.TimelineOut]:
    """Return 24 numbers a partition: how many events were parked in each step of the window.

    Partitions that are not the user's are left out.
    """
    wanted = _ids(ids)
    begin = either("parked_since", parked_since, "since", since)
    end = either("parked_until", parked_until, "until", until)
    found = parked_events().timelines(access.teams("view"), wanted, since=begin, until=end)
    return {str(key): models.TimelineOut(**line) for key, line in found.items()}


def _ids(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts):
        raise InputError(f"ids: {text[:80]!r} are not ids; write them with commas between: 1,2,3")
    if len(parts) > _MOST_TIMELINES:
        raise InputError(f"ids: {len(parts)} are given; ask for at most {_MOST_TIMELINES} at once")
    return [int(part) for part in parts]


@router.get("/partitions/{partition_id}", responses=_NO_PARTITION, summary="One partition")
def partition(here: PartitionViewer) -> models.PartitionDetail:
    """Return a partition with what its error means, its causes, replays, mark and hold."""
    meaning = error_type(here.partition.error_type)
    explained = parked_events().explained(here.access, here.partition)
    shown, hold = explained.partition, explained.hold
    mark = parked_events().marked(here.partition)
    return models.PartitionDetail(
        **{field.name: getattr(shown, field.name) for field in fields(shown)},
        title=meaning.title,
        advice=meaning.advice,
        transient=meaning.transient,
        enters_earlier=parked_events().can_enter_earlier(here.partition),
        replays=[models.ReplayOut.of(one) for one in parked_events().standings(here.partition.id)],
        fingerprints=[models.Group(**group.to_json()) for group in explained.causes],
        auto_replay=None if mark is None else models.Mark(**mark.to_json()),
        hold=None if hold is None else models.HoldOut(**hold.to_json()),
    )


@router.get(
    "/partitions/{partition_id}/events",
    response_model=models.Events,
    response_class=JSONResponse,
    responses=_NO_PARTITION,
    summary="Events with their errors",
)
def events(
    here: PartitionViewer,
    limit: Annotated[int, Query(ge=1, le=200, description="Most events.")] = 20,
    fingerprint: Annotated[str | None, Query(description="Only events of this cause.")] = None,
    after: Annotated[str | None, Query(description="`next` of the page before.")] = None,
) -> Response:
    """Return a page of a partition's events that are parked or replaying, in replay order.

    Personal fields are masked without the permission `personal`; with it, the look is audited.
    Numbers are written as they came, whatever their size. What cannot be read is in `damaged`.
    """
    page = parked_events().events(
        here.access, here.partition, after=after, limit=limit, fingerprint=fingerprint
    )
    answer: dict[str, Any] = {
        "events": [shown_event(one) for one in page.events],
        "next": page.next,
        "damaged": [one.to_json() for one in page.damaged],
    }
    return Response(dumps(answer), media_type="application/json")


@router.get(
    "/partitions/{partition_id}/download",
    response_class=StreamingResponse,
    responses={
        200: {"content": {kind: {} for kind in _MEDIA.values()}, "description": "A file."},
        **_NO_PARTITION,
    },
    summary="A file with the events",
)
def download(
    here: PartitionDownloader,
    kind: Annotated[
        Literal["jsonl.zst", "jsonl", "csv"],
        Query(description="`csv`: cells that a spreadsheet takes as formulas get an apostrophe."),
    ] = "jsonl.zst",
    since: Since = None,
    until: Until = None,
) -> StreamingResponse:
    """Stream a partition's events that are parked or replaying; every download is audited.

    Personal fields are masked without the permission `personal`. What cannot be read
    is told at the end: `{"damaged": [...]}` as the last line, in a table a row for each object.
    """
    pieces = parked_events().download(
        here.access, here.partition, kind=f".{kind}", since=since, until=until
    )
    name = f"parked-{here.partition.id}.{kind}"
    return StreamingResponse(
        _begun(pieces),
        media_type=_MEDIA[kind],
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


def _begun(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Read the first piece now, so that what is wrong from the start has its own answer."""
    first = next(pieces, b"")
    return chain((first,), pieces)


@router.get("/audit", summary="Who did what")
def audit(
    access: Viewer,
    limit: Annotated[int, Query(ge=1, le=500, description="Most entries.")] = 50,
) -> models.Audit:
    """Return the newest entries of Waybill's audit log about the user's teams."""
    rows = parked_events().audit_entries(access.teams("view"), limit=limit)
    return models.Audit(entries=[models.AuditEntry(**row) for row in rows])


@router.get("/openapi.json", response_class=JSONResponse, summary="This description")
def openapi(_access: Viewer, request: Request) -> JSONResponse:
    """Return the OpenAPI description of all of these routes, and where they are."""
    servers = [{"url": request.scope.get("root_path") or "/"}]
    return JSONResponse(request.app.openapi() | {"servers": servers})
