"""torch's default generators as sources of seeds and offsets for kernels that draw by index."""

from __future__ import annotations

import torch
from torch._guards import active_fake_mode

_SIGN = 1 << 63


def draw(device: torch.device, count: int) -> tuple[int, int]:
    """(seed, first of `count` offsets) for one call, by which the device's generator advances once.

    On a GPU they are the generator's own seed and its offset in units of one Philox call: what
    nvFuser takes, and what Thunder's `get_and_update_rng_state` gives. A CPU's generator has no
    offsets and gives a new seed. Where only shapes are wanted nothing is drawn.
    """
    if active_fake_mode() is not None:
        return 0, 0
    if device.type != "cuda":
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_()), 0
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    # torch counts words, and a call of the generator makes four.
    offset = generator.get_offset() // 4
    generator.set_offset(4 * (offset + count))
    return _signed(generator.initial_seed()), offset


def _signed(seed: int) -> int:
    """The int64 with the bits of an unsigned seed."""
    seed &= 2 * _SIGN - 1
    return seed - 2 * _SIGN if seed & _SIGN else seed
