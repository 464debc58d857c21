"""Access to ``csrc_templates``, the CUDA C++ headers that are not generated.

The folder is next to the package in a checkout and in an editable install, and inside the package
in a wheel. ``importlib.resources`` finds it in only one of the three, so this module looks in both
places.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from thunder_fuser.errors import FuserValueError, InternalError

_PACKAGE = Path(__file__).resolve().parents[1]
_INCLUDE = re.compile(r'\s*#\s*include\s+"(\w+\.cuh)"')
_PLACES = (_PACKAGE / "csrc_templates", _PACKAGE.parent / "csrc_templates")


@functools.cache
def template_dir() -> Path:
    """Return the folder, a compiler's include path; InternalError if it is missing."""
    for place in _PLACES:
        if (place / "prelude.cuh").is_file():
            return place
    looked = " and ".join(map(str, _PLACES))
    raise InternalError(f"csrc_templates is missing: looked for prelude.cuh in {looked}")


@functools.cache
def read(name: str) -> str:
    """Return the text of a file, by its path in the folder; FuserValueError if there is none."""
    path = template_dir() / name
    if not path.is_file():
        known = ", ".join(template_names())
        raise FuserValueError(f"csrc_templates has no file {name!r}; it has {known}")
    return path.read_text(encoding="utf-8")


def expanded(names: Sequence[str]) -> str:
    """Return the text of CUDA files with their includes expanded, each file once. Includes of files
    other than .cuh, which only the host's compiler sees, are kept.
    """
    seen: set[str] = set()
    return "\n".join(_expanded(name, seen) for name in names if name not in seen)


def _expanded(name: str, seen: set[str]) -> str:
    seen.add(name)
    lines = []
    for line in read(name).splitlines():
        included = _INCLUDE.match(line)
        if included is None:
            lines.append(line)
        elif included[1] not in seen:
            lines.append(_expanded(included[1], seen))
    return "\n".join(line for line in lines if line.strip() != "#pragma once")


@functools.cache
def template_names() -> tuple[str, ...]:
    """Return the paths of all files in the folder, sorted, with '/' as separator."""
    root = template_dir()
    return tuple(sorted(p.relative_to(root).as_posix() for p in root.rglob("*.*") if p.is_file()))


@functools.cache
def fingerprint() -> str:
    """Return a digest of all files, for cache keys of compiled code that includes some of them."""
    digest = hashlib.sha256()
    for name in template_names():
        digest.update(f"{name}\0{read(name)}\0".encode())
    return digest.hexdigest()
