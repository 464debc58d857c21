"""Private folders: places where only this user writes, so that what lies there may be run.

A compiled kernel is code. Whoever can put a file into the cache, or put another folder in its
place, runs as whoever loads it. So a folder is believed only if every folder from the root down to
it belongs to this user or to root and lets nobody else write; where others may write above it, as
in a temporary folder, the sticky bit has to keep them from moving what is not theirs. Each folder
is opened inside the one before it and asked once it is open: nothing changes between the question
and the use.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from thunder_fuser.errors import Refusal

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LOOK = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_PATH
_PREFIX = "thunder_fuser-process-"
"""Of folders that live as long as a process."""
_ABANDONED = 24 * 3600.0
"""Seconds after which a workspace is nobody's where that cannot be seen."""


# --- Folders ----------------------------------------------------------------------------------


def open_private(folder: Path) -> int | Refusal:
    """A descriptor of `folder`, which is made if need be, or why it is none that only this user
    writes.
    """
    try:
        return _walk(Path(os.path.realpath(folder)), shared=False)
    except OSError as error:
        return Refusal("unusable", error.strerror or str(error), subject=str(folder))


def problem_of(folder: Path) -> Refusal | None:
    """Why `folder` is no private one that can be written; None if it is."""
    opened = open_private(folder)
    if isinstance(opened, Refusal):
        return opened
    try:
        if os.access(".", os.W_OK | os.X_OK, dir_fd=opened, effective_ids=True):
            return None
        return Refusal("unusable", "it cannot be written", subject=str(folder))
    finally:
        os.close(opened)


def _walk(path: Path, shared: bool) -> int | Refusal:
    """A descriptor of `path`, which has no links in it; missing folders are made, for us alone.

    shared  others may write into the last folder as well, if it is sticky
    """
    current = os.open("/", _LOOK)
    try:
        for depth, name in enumerate(path.parts[1:], 1):
            place = Path(*path.parts[: depth + 1])
            following = _entered(current, name)
            os.close(current)
            current = following
            status = os.fstat(current)
            may_share = shared or depth + 1 < len(path.parts)
            if problem := _distrust(status, may_share):
                return Refusal("untrusted", problem, subject=str(place))
        # What only names a place cannot be listed or locked.
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
    finally:
        os.close(current)


def _entered(parent: int, name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.open(name, _LOOK, dir_fd=parent)
    with contextlib.suppress(FileExistsError):  # another process was quicker
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _LOOK, dir_fd=parent)


def _distrust(status: os.stat_result, may_share: bool) -> str:
    """Why others can change what is in a folder, or ""."""
    if status.st_uid not in _trusted_users():
        return f"it belongs to user {status.st_uid}, not to user {os.geteuid()} or to root"
    if may_share and status.st_mode & stat.S_ISVTX:
        return ""
    writers = status.st_mode & _OTHERS_WRITE
    if writers == stat.S_IWGRP and _is_own_group(status.st_gid):
        return ""
    return f"other users can write it (mode {stat.S_IMODE(status.st_mode):04o})" if writers else ""


def _trusted_users() -> tuple[int, int]:
    return 0, os.geteuid()


def _is_own_group(number: int) -> bool:
    """Whether a group is the one that many systems make for each user: of his name, and of nobody
    else. The usual umask there lets it write.
    """
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_own = group.gr_name == user.pw_name and number == user.pw_gid
    return is_own and set(group.gr_mem) <= {user.pw_name}


# --- Files ------------------------------------------------------------------------------------


def read_private(folder: int, name: str) -> bytes | None:
    """The content of a file in an open private folder, and a note that it was used; None unless it
    is a plain file that only this user or root can have written.
    """
    try:
        # A pipe or a device is opened without waiting for it, and then refused.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        file = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        plain = stat.S_ISREG(status.st_mode) and not status.st_mode & _OTHERS_WRITE
        if not plain or status.st_uid not in _trusted_users():
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        with open(file, "rb", closefd=False) as stream:
            return stream.read()
    except OSError:
        return None
    finally:
        os.close(file)


# --- Folders that live as long as a process or a piece of work ---------------------------------


@contextlib.contextmanager
def workspace(folder: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `folder`, locked while it is used, which is how others know that it is."""
    path, lock = _locked(folder, prefix)
    try:
        yield path
    finally:
        os.close(lock)
        shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path, prefix: str) -> None:
    """Remove the workspaces in `folder` whose process has died."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_abandoned(Path(entry.path))


def _remove_abandoned(path: Path) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(lock)
        if status.st_uid == os.geteuid() and _take(lock, status):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _take(lock: int, status: os.stat_result) -> bool:
    """Whether nobody uses a workspace any more."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return time.time() - status.st_mtime > _ABANDONED
    return True


def _locked(folder: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the descriptor that locks it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # swept before it was opened
            continue
        with contextlib.suppress(OSError):  # a file system without locks: nobody can take it either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # and was not swept before it was locked
            return path, lock
        os.close(lock)


class _OwnFolders:
    """Folders of this process by the temporary folder that they are in. A forked child makes its
    own, and leaves those of its parent alone.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._known: dict[Path, tuple[Path, int]] = {}
        atexit.register(self._remove)

    def get(self, parent: Path) -> Path | None:
        """The folder in `parent`; None if there can be none that only this user writes."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._known = {}
        path, _ = self._known.get(parent, (None, -1))
        # Cleaners of temporary folders know nothing of locks.
        if path is None or problem_of(path):
            path = self._made(parent)
        return path

    def _made(self, parent: Path) -> Path | None:
        resolved = Path(os.path.realpath(parent))
        try:
            opened = _walk(resolved, shared=True)
            if isinstance(opened, Refusal):
                return None
            os.close(opened)
            sweep(resolved, _PREFIX)
            self._known[parent] = _locked(resolved, _PREFIX)
        except OSError:
            return None
        return self._known[parent][0]

    def _remove(self) -> None:
        if self._process == os.getpid():
            for path, _ in self._known.values():
                shutil.rmtree(path, ignore_errors=True)


_OWN = _OwnFolders()


def process_folders() -> Iterator[Path]:
    """Private folders that are removed when the process ends: where temporary files go, then in
    memory, then elsewhere.
    """
    places = ["/dev/shm", "/var/tmp", "/tmp"]
    with contextlib.suppress(OSError):  # it writes a file to find out, and disks are full
        places.insert(0, tempfile.gettempdir())
    for place in dict.fromkeys(map(Path, places)):
        if place.is_dir() and (found := _OWN.get(place)):
            yield found
