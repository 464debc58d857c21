"""Types of kernel IR besides dtypes: accumulators, and vectors in registers."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.ir.dtypes import DataType

WORD = 4
"""Bytes of a register, which is also the smallest accumulator and the unit of a warp shuffle."""


@dataclass(frozen=True, slots=True)
class Reducer:
    """A reduction operation over elements of a dtype; as a `Type`, the type of its accumulator.

    op        a row of the table of reductions
    position  integer type of element positions, if the operation reduces them too (argmax)
    brief     the short form, for fp32 elements that have no more digits than 16 bits hold
    """

    op: str
    accumulate: DataType
    position: DataType | None = None
    brief: bool = False

    @property
    def element(self) -> DataType:
        """Type in which elements are reduced: Int32 if the dtype is narrower than a register."""
        return DataType.Int32 if self.accumulate.itemsize < WORD else self.accumulate


@dataclass(frozen=True, slots=True)
class ReducerLanes:
    """Type of the accumulators of a vector's lanes, as a struct of arrays (`tf::Lanes`)."""

    reducer: Reducer
    lanes: int


@dataclass(frozen=True, slots=True)
class PairedLanes:
    """Type of a vector's lanes in the register order of `lower/vectors/paired_lanes.py`."""

    dtype: DataType
    lanes: int


@dataclass(frozen=True, slots=True)
class RawVector:
    """Type of `width` loaded elements that are not unpacked yet, 16 bytes at most."""

    dtype: DataType
    width: int


Type = DataType | Reducer | ReducerLanes | PairedLanes | RawVector
