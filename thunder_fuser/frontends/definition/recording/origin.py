"""Source line of the user's program for each operation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from thunder_fuser.ir.fusion import Origin

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def calling_origin(symbol: str) -> Origin:
    """The innermost stack frame outside this package, as an Origin."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return Origin(symbol, frame.f_code.co_filename, frame.f_lineno)
