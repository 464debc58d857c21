"""Philox seeds and offsets for kernels, from torch's default generators."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch._guards import active_fake_mode

from thunder_fuser.runtime.fork import Lock

_SIGN = 1 << 63
_drawing = Lock()

Seed: TypeAlias = "int | torch.Tensor"
"""Seed of a call. In a CUDA graph, a 0-dimensional int64 tensor, which each replay draws again."""


def draw(device: torch.device, count: int) -> tuple[Seed, int]:
    """Return (seed, first of `count` offsets) for one call and advance the device's generator.

    On a GPU these are the generator's seed and its offset in units of one Philox call, as in
    nvFuser and in Thunder's `get_and_update_rng_state`. A CPU generator has no offsets and gives a
    new seed; so does a GPU's during stream capture, because its state is then that of one replay.
    Under a fake tensor mode nothing is drawn, and both are 0.

    Calls of several threads draw different offsets. torch has no function that reads and advances
    an offset in one step, so a torch operation or Thunder's primitive that draws from the same
    generator in another thread, at the same moment, may get the same ones.
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
    with _drawing:
        # torch counts 32-bit words, and a Philox call makes four.
        offset = generator.get_offset() // 4
        generator.set_offset(4 * (offset + count))
    return _signed(generator.initial_seed()), offset


def _new_seed(device: torch.device) -> torch.Tensor:
    """Draw a seed on the device, so that a graph replay draws it again."""
    return torch.empty((), dtype=torch.int64, device=device).random_()


def _signed(seed: int) -> int:
    """Reinterpret an unsigned 64-bit seed as int64."""
    seed &= 2 * _SIGN - 1
    return seed - 2 * _SIGN if seed & _SIGN else seed
