"""`cache info` and `cache clear`: count and remove the compiled kernels on disk.

Each target has a subfolder of its name, where it writes and evicts entries itself. Other files in
the cache folder are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from thunder_fuser.config import current
from thunder_fuser.runtime.compilation.private import problem_of

TARGETS = ("host", "cuda")


def files(target: str) -> list[Path]:
    """Return the complete cache files of `target`, without temporary ones."""
    folder = current().cache_folder / target
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    unfinished = (".tmp-", "tmp/")
    return sorted(folder / path for path in found if not path.as_posix().startswith(unfinished))


def info() -> str:
    """Return file counts and sizes of every target, and the cache path."""
    rows = (f"  {target:5} {_amount(files(target))}" for target in TARGETS)
    return "\n".join((f"cache in {current().cache_folder}", *rows, *_refused()))


def _refused() -> Iterator[str]:
    for target in TARGETS:
        folder = current().cache_folder / target
        if not folder.exists():
            continue
        if problem := problem_of(folder, to_read=True):
            where = "" if problem.subject == str(folder) else f"{problem.subject}: "
            yield f"  {target:5} not used: {where}{problem.text}"
        elif problem := problem_of(folder):
            yield f"  {target:5} only read: {problem.text}"


def clear() -> str:
    """Remove every cached file of every target and return a summary.

    Folders stay, because a compiling process may have them open.
    """
    found = [path for target in TARGETS for path in files(target)]
    amount = _amount(found)
    for path in found:
        path.unlink(missing_ok=True)
    return f"removed {amount} from {current().cache_folder}"


def _amount(paths: list[Path]) -> str:
    size = sum(path.stat().st_size for path in paths if path.exists())
    return f"{len(paths)} files, {size / 2**20:.1f} MiB"
