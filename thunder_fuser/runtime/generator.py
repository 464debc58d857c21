"""torch's default generators as sources of seeds and offsets for kernels that draw by index."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch._guards import active_fake_mode

_SIGN = 1 << 63


Seed: TypeAlias = "int | torch.Tensor"
"""A tensor of no dimensions in a CUDA graph, which draws another one at each replay."""


def draw(device: torch.device, count: int) -> tuple[Seed, int]:
    """(seed, first of `count` offsets) for one call, by which the device's generator advances once.

    On a GPU they are the generator's own seed and its offset in units of one Philox call: what
    nvFuser takes, and what Thunder's `get_and_update_rng_state` gives. A CPU's generator has no
    offsets and gives a new seed, and so does a GPU's while its stream is captured: what it would
    tell then is that of one replay. Where only shapes are wanted nothing is drawn.
    """
    if active_fake_mode() is not None:
        return 0, 0
    if device.type != "cuda":
        return int(_new_seed(device)), 0
    torch.cuda.init()
    if torch._C._cuda_isCurrentStreamCapturing():
        return _new_seed(device), 0
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    # torch counts words, and a call of the generator makes four.
    offset = generator.get_offset() // 4
    generator.set_offset(4 * (offset + count))
    return _signed(generator.initial_seed()), offset


def _new_seed(device: torch.device) -> torch.Tensor:
    """Drawn by the device, which a graph can do again."""
    return torch.empty((), dtype=torch.int64, device=device).random_()


def _signed(seed: int) -> int:
    """The int64 with the bits of an unsigned seed."""
    seed &= 2 * _SIGN - 1
    return seed - 2 * _SIGN if seed & _SIGN else seed
