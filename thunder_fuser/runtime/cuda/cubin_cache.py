"""Disk cache of cubins.

An entry is a cubin, readable by `nvdisasm` and similar tools, followed by the log of ptxas and the
cache's seal.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from thunder_fuser.runtime.compilation.cache import folder_to_write, folders

_log = logging.getLogger(__name__)

_LENGTH = 8
"""Bytes of the log's length field at the end of a cache entry."""


def load(key: str) -> tuple[bytes, str] | None:
    """Return the cubin and the log stored under `key`; None if missing or damaged."""
    for folder in folders("cuda"):
        entry = folder.find(_file_name(key), key)
        if entry is None and (shared := folder.alias(_file_name(key), key)):
            entry = folder.find(*shared)
        if entry is not None:
            length = int.from_bytes(entry[-_LENGTH:], "little")
            end = len(entry) - _LENGTH
            return entry[: end - length], entry[end - length : end].decode()
        if not folder.is_read_only:
            break  # other folders belong to this process, which compiles nothing twice
    return None


@contextlib.contextmanager
def turn(key: str) -> Iterator[None]:
    """Context in which no other process compiles `key`: load it in here, and then compile it."""
    try:
        folder = folder_to_write("cuda")
    except OSError:
        yield
        return
    with folder.turn(_file_name(key)):
        yield


def store(key: str, image: bytes, log: str) -> None:
    """Store a result.  A full or read-only disk only costs the next process a compilation."""
    report = log.encode()
    content = image + report + len(report).to_bytes(_LENGTH, "little")
    with _tolerant():
        folder_to_write("cuda").keep(content, _file_name(key), key)


def store_alias(key: str, whole: str) -> None:
    """Record that the program of `key` is part of that of `whole`."""
    with _tolerant():
        folder_to_write("cuda").keep_alias(_file_name(key), key, _file_name(whole), whole)


@contextlib.contextmanager
def _tolerant() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.info("not cached: %s", error)


def _file_name(key: str) -> str:
    return f"{key[:32]}.cubin"
