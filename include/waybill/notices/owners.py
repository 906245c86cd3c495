"""Whose pipelines they are: as the newest deployed declarations say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from waybill.storage.tracker import pipeline_versions, pipelines

NOBODY = ""
"""Owner of pipelines that nobody declared."""
_LONGEST_OWNER = 300


@dataclass(frozen=True, slots=True)
class Owned:
    """A pipeline's name and owner."""

    name: str
    owner: str


def owners(connection: Connection) -> dict[str, Owned]:
    """Return {pipeline id: name and owner} of all that are deployed."""
    newest = (
        select(
            pipeline_versions.c.pipeline_id, func.max(pipeline_versions.c.number).label("number")
        )
        .group_by(pipeline_versions.c.pipeline_id)
        .subquery()
    )
    query = (
        select(pipelines.c.id, pipelines.c.name, pipeline_versions.c.declaration["owner"].astext)
        .join(newest, newest.c.pipeline_id == pipelines.c.id)
        .join(
            pipeline_versions,
            (pipeline_versions.c.pipeline_id == newest.c.pipeline_id)
            & (pipeline_versions.c.number == newest.c.number),
        )
    )
    return {
        row[0]: Owned(row[1], (row[2] or NOBODY).strip()[:_LONGEST_OWNER])
        for row in connection.execute(query)
    }


def by_owner(pipeline_ids: Iterable[str], known: dict[str, Owned]) -> dict[str, list[str]]:
    """Return {owner: ids of the pipelines}, sorted."""
    found: dict[str, list[str]] = {}
    for pipeline_id in sorted(pipeline_ids):
        owned = known.get(pipeline_id)
        found.setdefault(owned.owner if owned else NOBODY, []).append(pipeline_id)
    return dict(sorted(found.items()))
