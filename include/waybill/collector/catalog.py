"""The deployed pipelines whose events come over HTTP, as a worker knows them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waybill.collector.authentication import Authenticator, find_secret
from waybill.collector.rate_limit import RateLimit
from waybill.collector.records import RecordReader
from waybill.deployment import active_heads, pipeline_of
from waybill.errors import InputError
from waybill.ingestion.connectors import HttpSource
from waybill.pipelines import Pipeline
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
CONNECTOR = "http"


@dataclass(frozen=True, slots=True)
class Entry:
    """One pipeline that takes events."""

    pipeline: Pipeline
    source: HttpSource
    authenticator: Authenticator
    records: RecordReader
    limit: RateLimit


class Catalog:
    """What is deployed, kept from one look to the next.

    Args:
        tracker: what is deployed.
        events_per_s: of pipelines that do not say it.
        secrets: finds a reference's secrets.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        *,
        events_per_s: int,
        secrets: Callable[[str], list[bytes]] = find_secret,
    ) -> None:
        self._tracker = tracker
        self._events_per_s = events_per_s
        self._secrets = secrets
        self._entries: Mapping[str, Entry] = {}
        self._refused: dict[str, str] = {}
        self.looked = False
        """It was read at least once."""

    def entry(self, name: str) -> Entry | None:
        """Return the pipeline of a name; None: none of it takes events."""
        return self._entries.get(name)

    def __len__(self) -> int:
        """Return how many pipelines take events."""
        return len(self._entries)

    def refresh(self) -> None:
        """Look what is deployed now.

        A pipeline that cannot be served (no secret, say) is left out, and logged once.

        Raises:
            RetryError: the tracker is away; what was known stays.
        """
        entries: dict[str, Entry] = {}
        refused: dict[str, str] = {}
        for pipeline_id, head in active_heads(self._tracker).items():
            if head.source.connector != CONNECTOR:
                continue
            known = self._entries.get(head.name)
            if known is not None and known.pipeline.version == head.version:
                entries[head.name] = known
                continue
            try:
                entries[head.name] = self._made(pipeline_of(self._tracker, pipeline_id))
            except InputError as error:
                refused[head.name] = str(error)
                if self._refused.get(head.name) != str(error):
                    _LOG.error("pipeline %s takes no events: %s", head.name, error)
        self._entries, self._refused = entries, refused
        self.looked = True

    def _made(self, pipeline: Pipeline) -> Entry:
        source = HttpSource.of(pipeline.source)
        per_s = self._events_per_s if source.events_per_s is None else source.events_per_s
        return Entry(
            pipeline,
            source,
            Authenticator(source, self._secrets(source.secret)),
            RecordReader(pipeline, source),
            RateLimit(per_s),
        )
