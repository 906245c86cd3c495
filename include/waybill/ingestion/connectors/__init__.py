"""Connectors: how and when the data of a source is fetched.

A connector turns a source into pages of rows. A row is a dict of plain JSON values: None, bools,
integers, floats, text, and lists and objects of these; times are RFC 3339 in UTC, dates ISO 8601,
decimals text with all digits.
What cannot become a row becomes a ``BadRow`` with its raw bytes, and is parked by ingestion. A row
that is more than an upsert of the source's one event name is a ``Record``.

Invariants
  I1  The same source and cursor give the same page, always; of a source that has grown, one that
      begins with it.
  I2  Pages form a chain: each ``start`` is the cursor of the page before, the first one's is the
      cursor that was given.
  I3  Each record of the source is in exactly one page, as a row or as a bad row.
  I4  A file that changed is read from its beginning; what comes again is recognised downstream by
      id and version.
  I5  Opening a connector reads nothing; errors show no secret of its connection.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.ingestion.connectors.base import BadRow as BadRow
    from waybill.ingestion.connectors.base import BoundedConnector as BoundedConnector
    from waybill.ingestion.connectors.base import ClosableConnector as ClosableConnector
    from waybill.ingestion.connectors.base import ConfirmedConnector as ConfirmedConnector
    from waybill.ingestion.connectors.base import Connector as Connector
    from waybill.ingestion.connectors.base import CountingConnector as CountingConnector
    from waybill.ingestion.connectors.base import Cursor as Cursor
    from waybill.ingestion.connectors.base import Discovered as Discovered
    from waybill.ingestion.connectors.base import DiscoveringConnector as DiscoveringConnector
    from waybill.ingestion.connectors.base import FormCheckingConnector as FormCheckingConnector
    from waybill.ingestion.connectors.base import HeldLog as HeldLog
    from waybill.ingestion.connectors.base import HoldingConnector as HoldingConnector
    from waybill.ingestion.connectors.base import KeyKeepingConnector as KeyKeepingConnector
    from waybill.ingestion.connectors.base import NotingConnector as NotingConnector
    from waybill.ingestion.connectors.base import Page as Page
    from waybill.ingestion.connectors.base import Patience as Patience
    from waybill.ingestion.connectors.base import PreviewingConnector as PreviewingConnector
    from waybill.ingestion.connectors.base import RateLimit as RateLimit
    from waybill.ingestion.connectors.base import Record as Record
    from waybill.ingestion.connectors.base import Row as Row
    from waybill.ingestion.connectors.base import SeekingConnector as SeekingConnector
    from waybill.ingestion.connectors.base import Standing as Standing
    from waybill.ingestion.connectors.base import StandingConnector as StandingConnector
    from waybill.ingestion.connectors.base import WaitingConnector as WaitingConnector
    from waybill.ingestion.connectors.base import first_pages as first_pages
    from waybill.ingestion.connectors.base import reads_again as reads_again
    from waybill.ingestion.connectors.base import waiting_in as waiting_in
    from waybill.ingestion.connectors.connections import Connection as Connection
    from waybill.ingestion.connectors.connections import Connections as Connections
    from waybill.ingestion.connectors.connections import Lookup as Lookup
    from waybill.ingestion.connectors.csv_file import CsvConnector as CsvConnector
    from waybill.ingestion.connectors.declared_addresses import closed_places as closed_places
    from waybill.ingestion.connectors.http_source import HttpSource as HttpSource
    from waybill.ingestion.connectors.known_keys import KEYS_PREFIX as KEYS_PREFIX
    from waybill.ingestion.connectors.opening import Opening as Opening
    from waybill.ingestion.connectors.opening import Options as Options
    from waybill.ingestion.connectors.registry import closing_connector as closing_connector
    from waybill.ingestion.connectors.registry import connector_class as connector_class
    from waybill.ingestion.connectors.registry import connector_of as connector_of
    from waybill.ingestion.connectors.registry import open_connector as open_connector

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "base": [
            "BadRow",
            "BoundedConnector",
            "ClosableConnector",
            "ConfirmedConnector",
            "Connector",
            "CountingConnector",
            "Cursor",
            "Discovered",
            "DiscoveringConnector",
            "FormCheckingConnector",
            "HeldLog",
            "HoldingConnector",
            "KeyKeepingConnector",
            "Page",
            "Patience",
            "NotingConnector",
            "PreviewingConnector",
            "RateLimit",
            "Record",
            "Row",
            "SeekingConnector",
            "Standing",
            "StandingConnector",
            "WaitingConnector",
            "first_pages",
            "reads_again",
            "waiting_in",
        ],
        "connections": ["Connection", "Connections", "Lookup"],
        "csv_file": ["CsvConnector"],
        "declared_addresses": ["closed_places"],
        "http_source": ["HttpSource"],
        "known_keys": ["KEYS_PREFIX"],
        "opening": ["Opening", "Options"],
        "registry": ["closing_connector", "connector_class", "connector_of", "open_connector"],
    },
)
