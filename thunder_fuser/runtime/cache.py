"""Files that many processes share: compiled host programs in the cache folder.

One file an entry, named by the digest of everything that went into it, so that entries never
change and readers need no lock. A file appears in one step (written beside its place, then renamed
over it) and ends with the digest of its own content, because loading half a library does not fail:
it crashes. Entries that nobody has used for long make room for new ones. Whatever goes wrong with
the folder, the worst outcome is that something is compiled again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from thunder_fuser.options import current

CACHE_BYTES = 1 << 30

_SEAL = b"thunder_fuser sha256:"
_SEAL_BYTES = len(_SEAL) + hashlib.sha256().digest_size


def target_dir(target: str) -> Path:
    """The cache folder of one target, made if need be.

    Where the cache cannot be written, a folder that lives as long as the process.
    """
    folder = current().cache_folder / target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return process_dir()


@functools.cache
def process_dir() -> Path:
    """A private folder that is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="thunder_fuser-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def temporary_file(folder: Path, suffix: str) -> Path:
    """A new empty file in `folder`; `publish` or `discard` it."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".tmp-", suffix=suffix)
    os.close(handle)
    return Path(name)


def publish(temporary: Path, path: Path) -> None:
    """Seal a finished file and move it to its place, over whatever is there."""
    digest = hashlib.sha256(temporary.read_bytes()).digest()
    with temporary.open("ab") as file:  # loaders of ELF files ignore what follows
        file.write(_SEAL + digest)
    temporary.replace(path)
    _make_room(path.parent)


def is_intact(path: Path) -> bool:
    """Whether the file is there and as it was published; False whatever the reason.

    It counts as a use of the file.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.utime(path)
    body, tail = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    return tail == _SEAL + hashlib.sha256(body).digest()


def discard(path: Path) -> None:
    """Remove a file if possible."""
    with contextlib.suppress(OSError):
        path.unlink()


def _make_room(folder: Path) -> None:
    """Remove what has not been used for longest while `folder` is larger than CACHE_BYTES."""
    files = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):  # another process may remove it meanwhile
                found = entry.stat()
                files.append((found.st_mtime_ns, found.st_size, Path(entry.path)))
    size = sum(bytes_ for _, bytes_, _ in files)
    for _, bytes_, path in sorted(files):
        if size <= CACHE_BYTES:
            return
        discard(path)
        size -= bytes_
