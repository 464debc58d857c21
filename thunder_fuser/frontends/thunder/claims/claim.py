"""A claim: the promise to build one Thunder primitive, and the conditions under which it holds.

Claims are data.  `table.py` lists them, Thunder asks them (`Fuser` registers one checker a row),
regions are formed by their roles, and `regions/to_fusion.py` runs them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch

from thunder_fuser.errors import Refusal
from thunder_fuser.ir.fusion import Val
from thunder_fuser.segment.regions.joint_graph import Role


class Ending(enum.Enum):
    """A tag of the primitive that ends a call, for what torch's kernel does to memory."""

    NEW = "the result is new memory, whatever the primitive alone would give"
    ROW_MAJOR = "the result is row-major, whatever the strides of its operands"
    CHANNELS_LAST = "the result has its channels last if they were, and is row-major if not"


class Apart(enum.Enum):
    """A tag of a call that is claimed whole."""

    STATISTICS = "fused, it is its sub-symbols"


ORDERS = frozenset({Ending.ROW_MAJOR, Ending.CHANNELS_LAST})


@dataclass(frozen=True, slots=True)
class LiesAs:
    """Another such tag: the result lies as these tensors would have it, though its parts do not
    begin with them.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LiesAsIndexed:
    """Another: the result lies as torch's kernel that indexes dimension `dim` of a tensor has it.

    By the dimensions that are left of `source`, then by those of the index that are in its place.
    """

    source: str
    dim: int
    index: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the table.

    role    what the operation does to memory
    refuse  takes the primitive's own arguments, proxies and all; None means that we build it
    build   takes a FusionBuilder, then the same arguments with values in the place of proxies, and
            returns the results; dtypes may still differ from what Thunder says
            (`regions/to_fusion.py` casts)
    cost    arithmetic per element, in units of one fp32 instruction
    unread  positions of arguments of which only shape and dtype count; `build` gets their proxies
    cuda    `build` for tensors on a GPU, where torch's kernel computes in another type there
    """

    role: Role
    refuse: Callable[..., Refusal | None]
    build: Callable[..., Val | tuple[Val, ...]]
    cost: int = 1
    unread: tuple[int, ...] = ()
    cuda: Callable[..., Val | tuple[Val, ...]] | None = None

    def build_for(self, device: torch.device) -> Callable[..., Val | tuple[Val, ...]]:
        """What builds it for tensors on `device`."""
        return self.cuda if self.cuda is not None and device.type == "cuda" else self.build
