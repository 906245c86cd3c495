"""The route of destinations: how far each is, and since when one takes no loads."""

from __future__ import annotations

from typing import Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from waybill.events import rfc3339
from waybill.loading import DestinationLine, destination_lines
from waybill_airflow.web.guard import Viewer
from waybill_airflow.web.services import OPENED, parked_events

router = APIRouter(prefix="/api", tags=["destinations"])


class DestinationOut(BaseModel):
    """One destination, and how far it is."""

    name: str
    kind: str = Field(description="Empty: no settings of this web server name it.")
    live_tested: bool = Field(description="False: of its kind only the dialect was tested.")
    experimental: bool = Field(description="Only the dialect of its kind was tested.")
    state: Literal["takes loads", "waits", "parks"]
    loaded: int = Field(description="The last commit that is loaded, or parked.")
    last_commit: int
    rows: int = Field(description="Rows that wait to be loaded.")
    waiting_since: str | None
    attempts: int = Field(description="How often it was tried since then.")
    error_type: str = Field(description="What it said last; empty: it takes its loads.")
    error: str | None = Field(description="Its own words, for those who may view every team.")

    @classmethod
    def of(cls, line: DestinationLine, *, whole: bool) -> Self:
        """Return a destination; its words may hold what other teams' rows hold."""
        found = line.waiting
        parks = found is not None and found.parked_from is not None
        return cls(
            name=line.name,
            kind=line.kind,
            live_tested=line.live_tested,
            experimental=line.experimental,
            state="takes loads" if found is None else "parks" if parks else "waits",
            loaded=line.loaded,
            last_commit=line.last_commit,
            rows=line.rows,
            waiting_since=None if found is None else rfc3339(found.since),
            attempts=0 if found is None else found.attempts,
            error_type="" if found is None else found.code,
            error=found.error if found is not None and whole else None,
        )


class Destinations(BaseModel):
    """Destinations that pipelines of the user's teams go to."""

    destinations: list[DestinationOut]


@router.get("/destinations", summary="Destinations")
def destinations(access: Viewer) -> Destinations:
    """Return the destinations of the user's pipelines; all, to who may view every team."""
    teams = access.teams("view")
    lines = destination_lines(parked_events().tracker, OPENED.settings().destinations)
    seen = [line for line in lines if teams is None or set(teams) & set(line.teams)]
    return Destinations(
        destinations=[DestinationOut.of(line, whole=teams is None) for line in seen]
    )
