"""Files that show a failure: sources that a compiler rejected, scripts that repeat a mistake."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import tempfile
from pathlib import Path

from thunder_fuser.config import current
from thunder_fuser.runtime import private

_KEPT = 100
"""Failures that are kept."""

_log = logging.getLogger(__name__)


def save_rejected(name: str, text: str) -> Path | None:
    """Keep a source that a compiler rejected; None if it could not be written."""
    return save_failure(name, ".cu", text)


def save_failure(name: str, suffix: str, text: str) -> Path | None:
    """Keep what shows a failure, for whoever reads the message about it: in the `dump_dir`, or
    among the last of its kind beside the cache. The same failure is kept once.
    """
    if chosen := current().dump_dir:
        return _save(Path(chosen).expanduser(), f"{name}{suffix}", text)
    folder = current().cache_folder / "failed"
    if private.problem_of(folder):
        folder = _temporary()
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
