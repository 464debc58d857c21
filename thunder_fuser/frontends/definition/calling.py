"""The inputs of a call: nested lists flattened, and RNG seeds and offsets from torch appended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.runtime.generator import draw

Device: TypeAlias = "int | str | torch.device | None"
"""A user's device argument; an int names a CUDA device."""


def called_with(inputs: Sequence[Any], device: Device, draws: int) -> list[Any]:
    """All inputs of a call: the given ones, then a seed and `draws` offsets from torch."""
    flat = flattened(inputs)
    if not draws:
        return flat
    seed, offset = draw(_device_of(flat, device_of(device)), draws)
    return [*flat, seed, *range(offset, offset + draws)]


def asked_about(inputs: Sequence[Any], draws: int, expected: int) -> list[Any]:
    """All inputs of a query, `expected` ones, with a placeholder RNG state: nothing is drawn."""
    flat = flattened(inputs)
    if not draws or len(flat) == expected:
        return flat
    return [*flat, 0, *range(draws)]


def flattened(inputs: Sequence[Any]) -> list[Any]:
    """Inputs with nested lists (vectors) flattened; FuserTypeError if they are no list."""
    if isinstance(inputs, torch.Tensor) or not isinstance(inputs, (list, tuple)):
        raise FuserTypeError(
            f"inputs: expected a list, got {type(inputs).__name__}; pass execute([x, ...])"
        )
    return list(_leaves(inputs))


def _leaves(inputs: Sequence[Any]) -> Iterator[Any]:
    for x in inputs:
        if isinstance(x, (list, tuple)):
            yield from _leaves(x)
        else:
            yield x


def device_of(device: Device) -> torch.device | None:
    """The torch.device of a user's device argument; None for None."""
    if device is None:
        return None
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _device_of(inputs: Sequence[Any], device: torch.device | None) -> torch.device:
    """The device a fusion of these inputs runs on; the inputs are not validated."""
    found = [x.device for x in inputs if isinstance(x, torch.Tensor)]
    cuda = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return next((d for d in found if d.type == "cuda"), device or next(iter(found), cuda))
