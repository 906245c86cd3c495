"""Text files as UTF-8 bytes with a position: unpacked, and in whatever encoding they are.

A position is a number of bytes of the text, so it holds for packed files too: there it is reached
by reading what is before it.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from typing import IO, Any

import zstandard

from waybill.errors import InputError

PIECE = 1024**2
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOM = codecs.BOM_UTF8
_OTHER_UNICODE = (
    codecs.BOM_UTF32_LE,
    codecs.BOM_UTF32_BE,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
)


class TextFile:
    """The text of one file, read forwards.

    Args:
        raw: the file, at its beginning.
        name: for errors.
        encoding: of the text, when it is unpacked.

    Raises:
        InputError: it is UTF-16 or UTF-32 and ``encoding`` does not say so.
    """

    def __init__(self, raw: IO[bytes], name: str, encoding: str) -> None:
        self._raw, self._name = raw, name
        self._stream, self._packed = _unpacked(raw)
        self._decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)()
        self._encoding = encoding
        self._buffer = bytearray()
        self.position = 0
        """Of the buffer's beginning."""
        self.ended = False
        """Nothing is behind the buffer."""
        self.fill(4)
        if encoding == "utf-8" and self._buffer.startswith(_OTHER_UNICODE):
            raise InputError(
                f"source file {name!r}: expected UTF-8; found UTF-16 or UTF-32: declare it in"
                " source.options.encoding"
            )
        if self._buffer.startswith(_BOM):
            self.take(len(_BOM))

    @property
    def buffer(self) -> bytearray:
        """What was read and not taken yet."""
        return self._buffer

    def fill(self, size: int) -> None:
        """Read until the buffer has so many bytes, or the file ends.

        Raises:
            InputError: the file is damaged, or not of its encoding.
        """
        while len(self._buffer) < size and not self.ended:
            try:
                piece = self._stream.read(PIECE)
                self.ended = not piece
                self._buffer += self._text(piece)
            except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
                raise InputError(
                    f"source file {self._name!r} is damaged ({error}); fetch it again"
                ) from error

    def _text(self, piece: bytes) -> bytes:
        if self._decoder is None:
            return piece
        try:
            return self._decoder.decode(piece, final=self.ended).encode("utf-8", "replace")
        except UnicodeDecodeError as error:
            raise InputError(
                f"source file {self._name!r}: expected {self._encoding}; found bytes that are not"
                f" ({error.reason}); correct source.options.encoding"
            ) from error

    def take(self, size: int) -> bytes:
        """Return so many bytes of the buffer and go on behind them."""
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.position += len(taken)
        return taken

    def go_to(self, position: int) -> None:
        """Go on at a position behind this one.

        Raises:
            InputError: the file ends before it.
        """
        if not self._packed and self._decoder is None and position > self.position:
            self._raw.seek(position)
            self._buffer.clear()
            self.position, self.ended = position, False
            return
        while self.position < position:
            self.fill(PIECE)
            if not self._buffer:
                raise InputError(f"source file {self._name!r} ends before byte {position}")
            self.take(min(position - self.position, len(self._buffer)))

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


def _unpacked(raw: IO[bytes]) -> tuple[Any, bool]:
    begin = raw.read(4)
    raw.seek(0)
    if begin.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw, mode="rb"), True
    if begin == _ZSTD:
        unpacker = zstandard.ZstdDecompressor(max_window_size=2**27)
        return unpacker.stream_reader(raw, read_across_frames=True, closefd=False), True
    return raw, False
