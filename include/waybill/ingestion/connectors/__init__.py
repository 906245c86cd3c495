"""Connectors: how and when the data of a source is fetched.

A connector turns a source into pages of rows. A row is a dict of plain JSON values: None, bools,
integers, floats, text, and lists and objects of these; times are RFC 3339 in UTC, dates ISO 8601,
decimals text with all digits.
What cannot become a row becomes a ``BadRow`` with its raw bytes, and is parked by ingestion.

Invariants
  I1  The same source and cursor give the same page, always.
  I2  Pages form a chain: each ``start`` is the cursor of the page before, the first one's is the
      cursor that was given.
  I3  Each record of the source is in exactly one page, as a row or as a bad row.
  I4  A source that changed is read from its beginning; what comes again is recognised downstream by
      id and version.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.ingestion.connectors.base import BadRow as BadRow
    from waybill.ingestion.connectors.base import Connector as Connector
    from waybill.ingestion.connectors.base import CountingConnector as CountingConnector
    from waybill.ingestion.connectors.base import Cursor as Cursor
    from waybill.ingestion.connectors.base import Page as Page
    from waybill.ingestion.connectors.csv_file import CsvConnector as CsvConnector
    from waybill.ingestion.connectors.http_source import HttpSource as HttpSource
    from waybill.ingestion.connectors.registry import CONNECTORS as CONNECTORS
    from waybill.ingestion.connectors.registry import open_connector as open_connector

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "base": ["BadRow", "Connector", "CountingConnector", "Cursor", "Page"],
        "csv_file": ["CsvConnector"],
        "http_source": ["HttpSource"],
        "registry": ["CONNECTORS", "open_connector"],
    },
)
