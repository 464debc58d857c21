"""Steps of a computation: how often Python functions are called, which no machine changes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType


def steps(call: Callable[[], object]) -> Counter[str]:
    """Calls of each function of the package, by "file.function", while `call` runs."""
    found: Counter[tuple[str, str]] = Counter()

    def seen(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found[frame.f_code.co_filename, frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
    named: Counter[str] = Counter()
    for (file, function), count in found.items():
        package, _, path = file.rpartition("thunder_fuser/")
        if package:
            named[f"{path.rpartition('/')[2].removesuffix('.py')}.{function}"] += count
    return named
