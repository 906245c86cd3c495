"""Files: records gathered in local files and shipped to the object store, exactly once each.

Any process on a node writes files into a spool folder: whole ones (``Spool.store``), or ones that
records are appended to (``RollingFile``), which roll by size and age. One process a node, the
owner, keeps the books of them (``FileManager``) and carries them away (``Shipper``,
``ship_until``), as fast as the store takes them (``Pace``). Others read the books meanwhile
(``FileReader``). What the files hold is the caller's: a ``Packer`` makes objects of them;
``WholeFilePacker`` sends each as it is.

Layout
  <spool>/<created µs>-<pid>-<process start ms>-<random>.open      being written, lock held
  <spool>/<same><ending>                                           finished, immutable
  <spool>/tracked/<same><ending>                                   the same, known to the books
  <spool>/tracked.bytes                                            what those hold together
  <spool>/damaged/<same>.tail                                      what a takeover could not keep
  <spool>/asks/<name>.ask                                          what people ask of the owner
  <spool>/files.rocksdb/                                           the books (``books``)

Invariants
  I1  What ``store``, ``sync`` or ``roll`` returned for is on disk; what ``append`` returned for
      survives the death of its process. What they did not return for was never promised: a file
      torn from its start is removed and noted, a torn tail is cut and set aside.
  I2  A file's shipment (ship id, files, keys) is in the books before the first PUT. A shipment that
      a death broke off is sent again under the same keys with the same bytes.
  I3  A file is deleted after every object of its shipment is confirmed (ETag, else read back) and
      the books say ``shipped``; never before.
  I4  One process owns the books; every change of state in them is one atomic, synced write.
  I5  A step of the owner costs the same however many files wait, or were shipped.
  I6  A full spool makes writers wait, then raises; nothing is dropped.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.tracing.files.books import FILE_STATES as FILE_STATES
    from waybill.tracing.files.books import FileReader as FileReader
    from waybill.tracing.files.books import FileRecord as FileRecord
    from waybill.tracing.files.books import FileState as FileState
    from waybill.tracing.files.books import Shipment as Shipment
    from waybill.tracing.files.books import Total as Total
    from waybill.tracing.files.manager import FileManager as FileManager
    from waybill.tracing.files.manager import ask_for_retry as ask_for_retry
    from waybill.tracing.files.packer import Cargo as Cargo
    from waybill.tracing.files.packer import DamagedFileError as DamagedFileError
    from waybill.tracing.files.packer import FilePacker as FilePacker
    from waybill.tracing.files.packer import FileStore as FileStore
    from waybill.tracing.files.packer import MakeBody as MakeBody
    from waybill.tracing.files.packer import WholeFilePacker as WholeFilePacker
    from waybill.tracing.files.packer import put_confirmed as put_confirmed
    from waybill.tracing.files.rolling import FRAMES as FRAMES
    from waybill.tracing.files.rolling import LINES as LINES
    from waybill.tracing.files.rolling import Framing as Framing
    from waybill.tracing.files.rolling import RollingFile as RollingFile
    from waybill.tracing.files.rolling import appended_spool as appended_spool
    from waybill.tracing.files.shipper import BOOKS as BOOKS
    from waybill.tracing.files.shipper import Pace as Pace
    from waybill.tracing.files.shipper import Shipper as Shipper
    from waybill.tracing.files.shipper import ShipReport as ShipReport
    from waybill.tracing.files.shipper import ship_until as ship_until
    from waybill.tracing.files.spool import Abandoned as Abandoned
    from waybill.tracing.files.spool import Sound as Sound
    from waybill.tracing.files.spool import Spool as Spool
    from waybill.tracing.files.spool import SpoolFile as SpoolFile
    from waybill.tracing.files.spool import SpoolLimit as SpoolLimit

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "books": ["FILE_STATES", "FileReader", "FileRecord", "FileState", "Shipment", "Total"],
        "manager": ["FileManager", "ask_for_retry"],
        "packer": [
            "Cargo",
            "DamagedFileError",
            "FileStore",
            "MakeBody",
            "FilePacker",
            "WholeFilePacker",
            "put_confirmed",
        ],
        "rolling": ["FRAMES", "Framing", "LINES", "RollingFile", "appended_spool"],
        "shipper": ["BOOKS", "Pace", "ShipReport", "Shipper", "ship_until"],
        "spool": ["Abandoned", "Sound", "Spool", "SpoolFile", "SpoolLimit"],
    },
)
