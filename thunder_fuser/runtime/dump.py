"""Sources of kernels, written for people to read."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.options import current

_log = logging.getLogger(__name__)


def dump(kernels: Sequence[Kernel]) -> None:
    """Write each kernel's source into the folder that the `dump_dir` option names, if any."""
    if folder := current().dump_dir:
        for kernel in kernels:
            _save(Path(folder).expanduser(), f"{kernel.name}.cu", kernel.text)


def save_rejected(name: str, text: str) -> Path | None:
    """Keep a source that a compiler rejected; None if it could not be written."""
    folder = current().dump_dir or tempfile.mkdtemp(prefix="thunder_fuser-rejected-")
    return _save(Path(folder).expanduser(), f"{name}.cu", text)


def _save(folder: Path, name: str, text: str) -> Path | None:
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _log.warning("%s was not written: %s", path, error)
        return None
    return path
