"""Disk cache of compiled programs, in a private folder shared by the processes of one user.

Each entry is a file, named by the digest of all its ingredients, so that entries never change and
readers need no lock. Processes that make the same entry, as ranks do, take turns, and all but the
first one find it. A file appears atomically (written to a temporary file, then renamed) and ends
with a seal, the digest of its key and its content, because loading a truncated library
crashes, and the library of another key is another program. Files that other users could have
written are not read (`private`). A folder that this process may only read, such as that of a
container's image, serves its entries and gets no new ones. The least recently used entries are
evicted. Any failure of the cache leads at worst to recompilation.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from thunder_fuser.config import current
from thunder_fuser.errors import Refusal
from thunder_fuser.runtime.compilation import private

CACHE_BYTES = 1 << 30

_SEAL = b"thunder_fuser sha256:"
_SEAL_BYTES = len(_SEAL) + hashlib.sha256().digest_size
_UNFINISHED = ".tmp-"
_ALIAS = ".in"
"""Suffix of an alias: an entry that names the entry that contains its program."""
_LOCK = ".lock"
_ABANDONED = 3600.0
"""Age in seconds at which an unfinished file outside of workspaces counts as abandoned."""


def key_of(*ingredients: object) -> str:
    """Return the digest of everything that an entry depends on."""
    return hashlib.sha256(repr(ingredients).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Folder:
    """Private folder of entries; each has a name and the key that it was made for."""

    path: Path

    @property
    def is_read_only(self) -> bool:
        """True if this process may not add entries."""
        return not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True)

    def find(self, name: str, key: str) -> bytes | None:
        """Return the content published as `name` for `key`; None if missing or not sealed for it.

        Counts as a use for LRU eviction.
        """
        folder = private.open_private(self.path)
        if isinstance(folder, Refusal):
            return None
        try:
            content = private.read_private(folder, name)
        finally:
            os.close(folder)
        if content is None:
            return None
        body, tail = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
        return body if tail == _seal(key, body) else None

    def keep_alias(self, name: str, key: str, entry: str, entry_key: str) -> None:
        """Publish that `entry` with `entry_key` contains the program of `name` and `key`."""
        self.keep(f"{entry_key} {entry}".encode(), f"{name}{_ALIAS}", key)

    def alias(self, name: str, key: str) -> tuple[str, str] | None:
        """Return the name and the key of the entry that contains this program; None if no alias."""
        content = self.find(f"{name}{_ALIAS}", key)
        if content is None:
            return None
        entry_key, _, entry = content.decode().partition(" ")
        return entry, entry_key

    def workspace(self) -> AbstractContextManager[Path]:
        """Temporary folder for unfinished files, removed at the end of the context. OSError if this
        process may not add entries.
        """
        if self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path))
        return private.workspace(self.path, _UNFINISHED)

    def turn(self, name: str) -> AbstractContextManager[None]:
        """Context in which no other process makes `name`: look it up in here, and then make it."""
        return private.turn(self.path / f"{_UNFINISHED}{name}{_LOCK}")

    def publish(self, finished: Path, name: str, key: str) -> Path:
        """Seal a file of a workspace and rename it to `name`, replacing an existing entry."""
        with finished.open("r+b") as file:  # ELF loaders ignore appended bytes
            body = file.read()
            file.write(_seal(key, body))
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        path = self.path / name
        try:
            finished.replace(path)
        except IsADirectoryError:
            shutil.rmtree(path)
            finished.replace(path)
        self._make_room(name)
        return path

    def keep(self, content: bytes, name: str, key: str) -> None:
        """Publish `content` as an entry."""
        with self.workspace() as work:
            finished = work / name
            finished.write_bytes(content)
            self.publish(finished, name, key)

    def discard(self, name: str) -> None:
        """Remove an entry if possible."""
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def _make_room(self, kept: str) -> None:
        """Remove files of dead processes, and the least recently used entries except `kept` while
        the folder is larger than CACHE_BYTES.
        """
        private.sweep(self.path, _UNFINISHED)
        files = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path):
                with contextlib.suppress(OSError):  # another process may remove it meanwhile
                    found = entry.stat(follow_symlinks=False)
                    if not stat.S_ISDIR(found.st_mode):
                        files.append((found.st_mtime_ns, found.st_size, entry.name))
        size = sum(bytes_ for _, bytes_, _ in files)
        now = time.time()
        for used, bytes_, name in sorted(files):
            old = now - used * 1e-9 > _ABANDONED and name.startswith(_UNFINISHED)
            if (size > CACHE_BYTES and name != kept) or old:
                self.discard(name)
                size -= bytes_


def _seal(key: str, body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(key.encode() + b"\0" + body).digest()


def folders(target: str) -> Iterator[Folder]:
    """Yield folders for programs of `target`, best first: its cache folder if it is private, even
    if it is read-only, then folders that are removed when the process ends.
    """
    folder = current().cache_folder / target
    problem = private.problem_of(folder, to_read=True)
    if problem is None:
        yield Folder(Path(os.path.realpath(folder)))
    else:
        _warn(problem.code, problem.subject, problem.text)
    yield from map(Folder, private.process_folders())


def folder_to_write(target: str) -> Folder:
    """Return the best folder for a new program of `target`; OSError if there is none."""
    for folder in folders(target):
        if not folder.is_read_only:
            return folder
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(current().cache_folder / target))


@functools.cache
def _warn(code: str, folder: str, text: str) -> None:
    why, remedy = "its folder is unusable", "one that you can write in THUNDER_FUSER_CACHE_DIR"
    if code == "untrusted":
        why = "another user could have put programs there"
        remedy = (
            "a folder of your own in THUNDER_FUSER_CACHE_DIR, or take the right to write from "
            "others (chmod go-w)"
        )
    warnings.warn(
        f"the cache of compiled kernels is not used, because {why}: {folder}: {text}. Every "
        f"process compiles its kernels again. Name {remedy}",
        RuntimeWarning,
        stacklevel=2,
    )
