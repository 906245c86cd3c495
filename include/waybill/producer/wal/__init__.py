"""The write-ahead log: memory-mapped segments of frames, appended here before anything is sent.

Invariants
  I1  ``append`` returns only when the whole frame is in the mapped file: a SIGKILL after that loses
      nothing. ``sync`` returns only when the disk has it: then a power cut loses nothing either.
  I2  A frame becomes visible by its last eight bytes to be written (CRC and length, one store);
      until then a reader sees the zero terminator that the frame before it left. A SIGKILL
      leaves no half frame.
  I3  A segment that an earlier process wrote is never appended to. An opened log starts a new
      segment, so that (segment, lsn) never names two records, even when a power cut took the end
      of the log.
  I4  A segment is given free only when all its records are below the floor that the caller proved
      (settled and, where marks are used, confirmed). A damaged one is moved to ``quarantine/``,
      never reused.
  I5  Blocks are allocated when a segment is made (``posix_fallocate``): a full disk is an error
      then, never a SIGBUS later.
  I6  A file whose sync was refused is never synced again and never reused: its frames are rewritten
      to another file, which takes its name (``syncer``). What another process left is written
      again before its first sync here: that process may have died after a refusal.

Directory
  seg-<wal id>-<segment id>-<base lsn>.wal   live segments; the name is the header (hex)
  free-<n>.wal                               settled files for further use; first 8 bytes zero
  copy-<n>.wal                               a rewrite of a segment that was broken off; removed
  quarantine/                                damaged segments, as they were found; poisoned-…: files
                                             that the disk refused to sync, rewritten since

Frame, little-endian; the next frame follows at once, eight zero bytes end the log
  crc        u32   CRC32, started from ``length``, of all bytes below and of eight zero bytes
  length     u32   bytes of all below
  tag        u32   of WAL id and segment id: bytes of a former life never pass for new ones
  kind       u8    1 data, 2 mark
  -          u8    zero
  topic      u16   bytes of the topic's name
  partition  i32   as the caller gave it, -1: the partitioner's choice
  key        i32   bytes of the key, -1 for null
  value      i32   bytes of the value (of a mark: its payload), -1 for null
  headers    u32   bytes of the headers, 0 for none
  lsn        u64   counts records from 1 without gaps; a gap is damage
  timestamp  i64   ms since epoch
  topic, key, value, headers
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.producer.wal.disk import Disk as Disk
    from waybill.producer.wal.disk import RealDisk as RealDisk
    from waybill.producer.wal.disk import WalFullError as WalFullError
    from waybill.producer.wal.disk import set_aside as set_aside
    from waybill.producer.wal.frame import DATA as DATA
    from waybill.producer.wal.frame import MARK as MARK
    from waybill.producer.wal.frame import FrameDamage as FrameDamage
    from waybill.producer.wal.frame import HeaderList as HeaderList
    from waybill.producer.wal.frame import HeadersIn as HeadersIn
    from waybill.producer.wal.frame import WalFrame as WalFrame
    from waybill.producer.wal.frame import WalRecord as WalRecord
    from waybill.producer.wal.frame import encode_headers as encode_headers
    from waybill.producer.wal.frame import frame_bytes as frame_bytes
    from waybill.producer.wal.frame import scan as scan
    from waybill.producer.wal.log import WriteAheadLog as WriteAheadLog
    from waybill.producer.wal.segment import parse_segment as parse_segment

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "disk": ["Disk", "RealDisk", "WalFullError", "set_aside"],
        "frame": [
            "DATA",
            "FrameDamage",
            "WalFrame",
            "HeaderList",
            "HeadersIn",
            "MARK",
            "WalRecord",
            "encode_headers",
            "frame_bytes",
            "scan",
        ],
        "log": ["WriteAheadLog"],
        "segment": ["parse_segment"],
    },
)
