"""What text does a file hold? Opens it, unpacks it, decodes it, and says where it is not text.

Rule 1: nothing here knows a fabric format; a file name is never looked at.
Rule 2: no input makes this read or unpack more than SIZE_MAX bytes.
"""

import lzma
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from erfs.errors import ConfigError, Problem

# The largest dump met is 3 MB for 4,341 adapters; ten times the largest cluster announced would make 700 MB.
SIZE_MAX: Final = 1 << 30
# What an xz stream may ask for to be unpacked; `xz -9` asks for 65 MB.
_XZ_MEMORY_MAX: Final = 256 << 20
_CHUNK: Final = 1 << 20

# Bytes that stand in no text file: all control characters but tab, line feed and carriage return.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_GZIP: Final = b"\x1f\x8b"
_XZ: Final = b"\xfd7zXZ\x00"
# What people hand over by mistake. Source: the magic numbers in file(1).
_RECOGNISED: Final = (
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (or an office document)"),
    (b"\x7fELF", "an ELF program"),
    (b"MZ", "a Windows program"),
    (b"BZh", "bzip2 data: unpack it first, only gzip and xz are read directly"),
    (b"\x28\xb5\x2f\xfd", "zstd data: unpack it first, only gzip and xz are read directly"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\xd4\xc3\xb2\xa1", "a packet capture"),
    (b"\x0a\x0d\x0d\x0a", "a packet capture"),
    (_GZIP, "gzip data inside compressed data: unpack it once"),
    (_XZ, "xz data inside compressed data: unpack it once"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """
    A file's text.

    Args:
        name: As the user gave it.
        text: Decoded; bytes that are not UTF-8 stand as U+FFFD.
        damaged: The lines that hold bytes no text file has, and what about them.
    """

    name: str
    text: str
    damaged: Mapping[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name without its folders: what a fabric from it is called, wherever the file lies."""
        return PurePath(self.name).name or self.name


def read_source(path: Path) -> Source:
    """
    Return the text of *path*, unpacked if it is gzip or xz by its first bytes.

    Raises:
        ConfigError: it cannot be read or unpacked, is empty, too large, or no text.

    Cost: O(bytes).
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_MAX + 1)
    except IsADirectoryError as error:
        raise _fault(name, "is a directory, expected a file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _fault(name, f"cannot be read: {reason.lower()}") from error
    return decode(name, _unpacked(name, raw))


def decode(name: str, raw: bytes) -> Source:
    """
    Return *raw* as text, with the lines that no text file has.

    Raises:
        ConfigError: it is empty, too large, or plainly something else than text.
    """
    if len(raw) > SIZE_MAX:
        raise _fault(name, f"is larger than {SIZE_MAX >> 20} MiB, the most that is read")
    for magic, meaning in _RECOGNISED:
        if raw.startswith(magic):
            raise _fault(name, f"is {meaning}; expected a fabric file")
    if raw[262 - 5 : 262] == b"ustar":
        raise _fault(name, "is a tar archive: unpack it and name the file in it")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _fault(name, "is UTF-16 text: save it as UTF-8")
    text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if not text.strip():
        raise _fault(name, "holds only blanks" if raw else "is empty")
    damaged: dict[int, str] = {}
    if "\ufffd" in text or _CONTROL.search(raw):
        for number, line in enumerate(raw.split(b"\n"), start=1):
            if b"\x00" in line:
                damaged[number] = f"holds a NUL byte at column {line.index(0) + 1}"
                continue
            if control := _CONTROL.search(line):
                damaged[number] = f"holds the control character 0x{control[0][0]:02x} at column {control.start() + 1}"
                continue
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                damaged[number] = (
                    f"holds the byte 0x{line[error.start]:02x} at column {error.start + 1}, which is not UTF-8"
                )
    return Source(name, text, damaged)


def _unpacked(name: str, raw: bytes) -> bytes:
    if raw.startswith(_GZIP):
        return _inflated(name, raw)
    if raw.startswith(_XZ):
        return _unxzed(name, raw)
    return raw


def _inflated(name: str, raw: bytes) -> bytes:
    parts: list[bytes] = []
    size = 0
    while raw.startswith(_GZIP):  # a gzip file may hold several streams, one after the other
        stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while raw and not stream.eof:
            try:
                part = stream.decompress(raw, _CHUNK)
            except zlib.error as error:
                raise _fault(name, f"is gzip data that is damaged after {size:,} unpacked bytes") from error
            raw = stream.unconsumed_tail
            size = _counted(name, size, part)
            parts.append(part)
        if not stream.eof:
            raise _fault(name, f"is gzip data that ends too early, after {size:,} unpacked bytes: the file was cut")
        raw = stream.unused_data.lstrip(b"\x00")  # tapes pad with NUL
    if raw:
        raise _fault(name, f"is gzip data with {len(raw):,} bytes of something else behind it")
    return b"".join(parts)


def _unxzed(name: str, raw: bytes) -> bytes:
    parts: list[bytes] = []
    size = 0
    while raw.startswith(_XZ):  # an xz file may hold several streams too
        stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_MAX)
        fed = raw
        while not stream.eof:
            try:
                part = stream.decompress(fed, _CHUNK)
            except lzma.LZMAError as error:
                raise _fault(
                    name, f"is xz data that cannot be unpacked after {size:,} bytes: {str(error).lower()}"
                ) from error
            fed = b""
            size = _counted(name, size, part)
            parts.append(part)
            if stream.needs_input and not stream.eof:
                raise _fault(name, f"is xz data that ends too early, after {size:,} unpacked bytes: the file was cut")
        raw = stream.unused_data.lstrip(b"\x00")
    if raw:
        raise _fault(name, f"is xz data with {len(raw):,} bytes of something else behind it")
    return b"".join(parts)


def _counted(name: str, size: int, part: bytes) -> int:
    if size + len(part) > SIZE_MAX:
        raise _fault(name, f"unpacks to more than {SIZE_MAX >> 20} MiB, the most that is read")
    return size + len(part)


def _fault(name: str, message: str) -> ConfigError:
    return ConfigError(name, [Problem(0, message)])
