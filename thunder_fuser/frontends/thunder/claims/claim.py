"""A claim: how to build one Thunder prim or call in a fusion, and when to refuse it.

Claims are data.  `table.py` lists them, Thunder consults them (`Fuser` registers one checker per
row), regions are formed by their roles, and `regions/to_fusion.py` runs their builders.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.fusion import Val
from thunder_fuser.segment.regions.joint_graph import Role


class Ending(enum.Enum):
    """Tag of the prim that ends a call, for memory, layout and rounding of torch's result."""

    NEW = "the result is new memory, whatever the primitive alone would give"
    ROW_MAJOR = "the result is row-major, whatever the strides of its operands"
    CHANNELS_LAST = "the result has its channels last if they were, and is row-major if not"
    ROUNDED = "the result is rounded before another call reads it: no FMA spans two calls"


class Apart(enum.Enum):
    """Tag of a call that is claimed as a whole."""

    STATISTICS = "fused, it is its sub-symbols"


ORDERS = frozenset({Ending.ROW_MAJOR, Ending.CHANNELS_LAST})


@dataclass(frozen=True, slots=True)
class LiesAs:
    """Tag of the prim that ends a call: the result has the layout of a pointwise result of these
    tensors, though the call's decomposition does not start from them.
    """

    names: tuple[str, ...]

    def renamed(self, names: Mapping[str, str]) -> LiesAs:
        """Return the tag with new names of tensors."""
        return LiesAs(tuple(names.get(name, name) for name in self.names))


@dataclass(frozen=True, slots=True)
class InFormatOf:
    """Tag of the prim that ends a call: the result has its channels last if this tensor, whose
    sizes may differ, has; else it is row-major.
    """

    name: str

    def renamed(self, names: Mapping[str, str]) -> InFormatOf:
        """Return the tag with new names of tensors."""
        return InFormatOf(names.get(self.name, self.name))


@dataclass(frozen=True, slots=True)
class LiesAsIndexed:
    """Tag of the prim that ends a call: the result has the layout of torch's kernel that indexes
    dimension `dim` of a tensor.

    It follows the other dimensions of `source`, then those of the index that replace `dim`.
    """

    source: str
    dim: int
    index: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the claims table.

    role    effect of the operation on memory
    refuse  takes the prim's arguments, with proxies; returns None if the claim builds it
    build   takes a FusionBuilder, then the same arguments with values instead of proxies, and
            returns the results, whose dtypes may differ from Thunder's (`regions/to_fusion.py`
            casts)
    cost    arithmetic per element, in units of one fp32 instruction
    unread  positions of arguments whose shape and dtype alone matter; `build` gets their proxies
    cuda    `build` for tensors on a GPU, if torch's CUDA kernel computes in another dtype
    """

    role: Role
    refuse: Callable[..., Refusal | None]
    build: Callable[..., Val | tuple[Val, ...]]
    cost: int = 1
    unread: tuple[int, ...] = ()
    cuda: Callable[..., Val | tuple[Val, ...]] | None = None

    def build_for(self, device: torch.device) -> Callable[..., Val | tuple[Val, ...]]:
        """Return the builder for tensors on `device`."""
        return self.cuda if self.cuda is not None and device.type == "cuda" else self.build
