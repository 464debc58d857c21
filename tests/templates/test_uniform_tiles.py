"""Tiles of a transpose whose elements all lanes of a vector share."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.frontends.thunder.programs import check


def test_a_value_of_a_tile_is_computed_once_for_a_vector() -> None:
    """The decays of a state-space model are transposed, and repeated for each of its states."""

    def program(states: Tensor, logarithms: Tensor) -> Tensor:
        grouped = states.transpose(1, 2).reshape(2, 2, 8, 2, 8).repeat_interleave(4, dim=3)
        decays = torch.exp(logarithms[..., -1:] - logarithms).permute(0, 2, 3, 1)
        return grouped * decays[..., None]

    check(program, torch.randn(2, 16, 16), torch.randn(2, 8, 2, 8))
