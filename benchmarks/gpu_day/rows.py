"""A row of a stage: one thing that is tried or measured, with a time limit of its own.

Every stage is a function from its settings to its rows; a row's function returns what goes into the
journal. Rows run in worker processes: a kernel that hangs takes one row with it, not the day.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """`run()` returns figures in SI units, or raises.

    limit     seconds after which the row's process is killed
    isolated  the row has a process of its own, since it may leave the device unusable; those that
              follow each other run side by side, so that they may not take times
    needs     "gpu", or "" for what can be tried on any machine
    """

    name: str
    run: Callable[[], Values]
    limit: float = 60.0
    isolated: bool = False
    needs: str = "gpu"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a stage is run with.

    dry      no launch: compile, plan, collect, and say what would run; needs NVRTC alone
    seconds  of timing for a row
    out      the folder of the journals, for what is too long for a line of one
    """

    dry: bool = False
    seconds: float = 1.0
    out: Path = Path("gpu_day")


Stage = Callable[[Settings], Sequence[Row]]
