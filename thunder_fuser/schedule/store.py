"""What all schedules end in: stores."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.analysis.access import Window
from thunder_fuser.analysis.value import Value
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.symint import Form


@dataclass(frozen=True, slots=True)
class Store:
    """An output of a part: its value at the point, where it goes, and in which windows.

    No windows means lane by lane.
    """

    tensor: TensorView
    value: Value
    address: Form
    windows: tuple[Window, ...]
