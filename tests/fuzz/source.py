"""Source text that is compiled so that tracebacks and `inspect` find its lines."""

from __future__ import annotations

import linecache
from types import CodeType


def compiled(source: str, file: str) -> CodeType:
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec")
