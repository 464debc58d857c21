"""Private folders: only this user can write to them, so that code in them may be loaded.

A compiled kernel is code. Whoever can write to the cache, or replace its folder, can run code as
the user who loads it. A folder is therefore trusted only if every folder from the root down to it
belongs to this user or to root and is not writable by others; a parent folder that others can
write, such as a temporary folder, must be sticky, so that they cannot rename entries of other
users. Each folder is opened relative to its parent's descriptor and checked after it was opened,
which excludes races between check and use.
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
"""Name prefix of folders that are removed when their process ends."""
_ABANDONED = 24 * 3600.0
"""Age in seconds at which a workspace counts as abandoned on a file system without locks."""

_TURN, _POLL = 120.0, 0.02
"""Most seconds that a process waits for another one that compiles the same, and between looks."""


# --- Folders ----------------------------------------------------------------------------------


def open_private(folder: Path) -> int | Refusal:
    """Open `folder`, creating it if missing: its descriptor, or a Refusal if others can write it or
    it is unusable.
    """
    try:
        return _walk(Path(os.path.realpath(folder)), shared=False)
    except OSError as error:
        return Refusal("unusable", error.strerror or str(error), subject=str(folder))


def problem_of(folder: Path, *, to_read: bool = False) -> Refusal | None:
    """Return why `folder` is not private or not writable; None if it is both. `to_read`: it need
    not be writable.
    """
    opened = open_private(folder)
    if isinstance(opened, Refusal):
        return opened
    try:
        if to_read or os.access(".", os.W_OK | os.X_OK, dir_fd=opened, effective_ids=True):
            return None
        return Refusal("unusable", "it cannot be written", subject=str(folder))
    finally:
        os.close(opened)


def _walk(path: Path, shared: bool) -> int | Refusal:
    """Open `path`, which must contain no links; missing folders are created with mode 0700.

    shared  the last folder may be writable by others if it is sticky
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
        # A descriptor opened with O_PATH cannot be listed or locked.
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
    finally:
        os.close(current)


def _entered(parent: int, name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.open(name, _LOOK, dir_fd=parent)
    with contextlib.suppress(FileExistsError):  # another process created it
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _LOOK, dir_fd=parent)


def _distrust(status: os.stat_result, may_share: bool) -> str:
    """Return why other users can change the contents of a folder, or ""."""
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
    """True for a user private group: it has the user's name and no other members. The usual umask
    on systems with such groups makes files group-writable.
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
    """Read a file in an open private folder and update its modification time, for LRU eviction;
    None unless it is a regular file that only this user or root can have written.
    """
    try:
        # O_NONBLOCK: opening a pipe or a device must not block; both are rejected below.
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


# --- Temporary folders ------------------------------------------------------------------------


@contextlib.contextmanager
def workspace(folder: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder in `folder`, locked while in use so that `sweep` skips it."""
    path, lock = _locked(folder, prefix)
    try:
        yield path
    finally:
        os.close(lock)
        shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path, prefix: str) -> None:
    """Remove the workspaces in `folder` that no live process has locked."""
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
    """Lock an abandoned workspace; False if it is in use."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return time.time() - status.st_mtime > _ABANDONED
    return True


def _locked(folder: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder and lock it; its path and the descriptor that holds the lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # swept before it was opened
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # and was not swept before it was locked
            return path, lock
        os.close(lock)


@contextlib.contextmanager
def turn(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, so that one process after another does what follows. Nobody waits
    for longer than `_TURN`, or where there are no locks.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    is_mine = False
    try:
        is_mine = _locked_in_time(lock)
        yield
    finally:
        if is_mine:
            with contextlib.suppress(OSError):
                path.unlink()
            # A forked child may have the same open file.
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _locked_in_time(lock: int) -> bool:
    end = time.monotonic() + _TURN
    while time.monotonic() < end:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL)
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False


class _OwnFolders:
    """Folders of this process by parent folder. A forked child creates its own, and does not remove
    those of its parent.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._known: dict[Path, tuple[Path, int]] = {}
        atexit.register(self._remove)

    def get(self, parent: Path) -> Path | None:
        """Return the folder in `parent`, created on first use; None if none can be private."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._known = {}
        path, _ = self._known.get(parent, (None, -1))
        # Cleaners of temporary folders ignore locks: the folder may have been removed.
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
    """Yield private folders that are removed when the process ends: in the default temporary
    folder, in memory (/dev/shm), then elsewhere.
    """
    places = ["/dev/shm", "/var/tmp", "/tmp"]
    with contextlib.suppress(OSError):  # `gettempdir` writes a probe file; disks may be full
        places.insert(0, tempfile.gettempdir())
    for place in dict.fromkeys(map(Path, places)):
        if place.is_dir() and (found := _OWN.get(place)):
            yield found
