"""Files saved for failure reports: rejected sources and reproduction scripts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import tempfile
from pathlib import Path

from thunder_fuser.config import current
from thunder_fuser.runtime.compilation import private

_KEPT = 100
"""Most failure files kept next to the cache."""

_log = logging.getLogger(__name__)


def save_rejected(name: str, text: str) -> Path | None:
    """Save a source that a compiler rejected; its path, or None if it could not be written."""
    return save_failure(name, ".cu", text)


def save_failure(name: str, suffix: str, text: str) -> Path | None:
    """Save a failure's source or script in `dump_dir`, or else among the latest `_KEPT` next to the
    cache; its path, or None if it could not be written. Equal failures are saved once.
    """
    if chosen := current().dump_dir:
        return _save(Path(chosen).expanduser(), f"{name}{suffix}", text)
    folder = current().cache_folder / "failed"
    if private.problem_of(folder):
        try:
            folder = _temporary()
        except OSError as error:
            _log.warning("%s%s was not written: %s", name, suffix, error)
            return None
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = _save(folder, f"{name[:80]}-{digest}{suffix}", text)
    _forget_oldest(folder)
    return path


@functools.cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="thunder_fuser-failed-"))


def _forget_oldest(folder: Path) -> None:
    with contextlib.suppress(OSError):
        files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-_KEPT]:
            path.unlink()


def _save(folder: Path, name: str, text: str) -> Path | None:
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _log.warning("%s was not written: %s", path, error)
        return None
    return path
