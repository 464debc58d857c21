"""Which line of the user's program an operation comes from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from thunder_fuser.ir.fusion import Origin

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def calling_origin(symbol: str) -> Origin:
    """The innermost line outside this package that is being executed."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return Origin(symbol, frame.f_code.co_filename, frame.f_lineno)
