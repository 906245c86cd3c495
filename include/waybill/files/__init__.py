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
  <spool>/files.rocksdb/                                           the books (``files.books``)

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

from waybill.files.asks import ask_for_retry
from waybill.files.books import FileReader
from waybill.files.framing import FRAMES, LINES, Framing
from waybill.files.limits import SpoolLimit
from waybill.files.loop import ship_until
from waybill.files.manager import FileManager
from waybill.files.pace import Pace
from waybill.files.packer import Cargo, DamagedFileError, MakeBody, Packer, WholeFilePacker
from waybill.files.records import FILE_STATES, FileRecord, FileState, Shipment, Total
from waybill.files.rolling import RollingFile, appended_spool
from waybill.files.shipper import BOOKS, Shipper, ShipReport
from waybill.files.spool import Abandoned, Sound, Spool, SpoolFile
from waybill.files.store import FileStore, put_confirmed

__all__ = [
    "BOOKS",
    "FILE_STATES",
    "FRAMES",
    "LINES",
    "Abandoned",
    "Cargo",
    "DamagedFileError",
    "FileManager",
    "FileReader",
    "FileRecord",
    "FileState",
    "FileStore",
    "Framing",
    "MakeBody",
    "Pace",
    "Packer",
    "RollingFile",
    "ShipReport",
    "Shipment",
    "Shipper",
    "Sound",
    "Spool",
    "SpoolFile",
    "SpoolLimit",
    "Total",
    "WholeFilePacker",
    "appended_spool",
    "ask_for_retry",
    "put_confirmed",
    "ship_until",
]
