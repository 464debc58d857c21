"""Stores of a schedule: the tensor, the value, and how its vectors are written."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.lower.scalar_graph import Value
from thunder_fuser.lower.vectorize import VectorAccess


@dataclass(frozen=True, slots=True)
class Store:
    """An output of a part: its value at the point, where it goes, and in which windows.

    No windows means lane by lane.
    """

    tensor: TensorView
    value: Value
    address: Form
    windows: tuple[VectorAccess, ...]
