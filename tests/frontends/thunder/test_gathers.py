"""Windows, combinations, repeats by a tensor, covariances, and which dtype a result has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.thunder.aliasing import differences, ran
from tests.frontends.thunder.programs import check, jit
from thunder_fuser import refusals

REPEATS = torch.tensor([1, 2, 0, 1])

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "windows": lambda x: x.unfold(1, 3, 1) * 2,
    "windows by keyword": lambda x: x.sin().unfold(dimension=1, size=3, step=2).sum(-1),
    "blocks": lambda x: x.unfold(-1, 2, 2) * 2,
    "blocks with gaps": lambda x: x.unfold(1, 2, 3) * 2,
    "blocks with a gap at the end": lambda x: x.unfold(1, 2, 4) * 2,
    "patches": lambda x: x.unfold(0, 2, 2).unfold(1, 3, 3) * 2,
    "one window": lambda x: x.unfold(1, 6, 1) * 2,
    "unfold of images": lambda x: F.unfold(x[None, None], 2) * 2 + x.unfold(0, 2, 2).sum(),
    "pairs": lambda x: torch.combinations(x[0]) * 2,
    "triples": lambda x: torch.combinations(x[0], 3, True) * 2,
    "single": lambda x: torch.combinations(x[0], r=1) * 2,
    "repeats": lambda x: x.repeat_interleave(REPEATS, 0, output_size=4) * 2,
    "repeats of all": lambda x: torch.repeat_interleave(x[:, 0], REPEATS, output_size=4) * 2,
    "one number of repeats": lambda x: x.repeat_interleave(REPEATS[1:2], 1, output_size=12) * 2,
    "cov": lambda x: torch.cov(x) * 2,
    "cov without correction": lambda x: x.T.cov(correction=0),
    "variance": lambda x: x[0].cov() * 2,
    "cov of a row": lambda x: x[:1].cov() * 2,
    "corrcoef": lambda x: torch.corrcoef(x) * 2,
    "corrcoef of a vector": lambda x: x[0].corrcoef() * x,
    "result_type": lambda x: (
        x.half().to(torch.result_type(x.half(), x.sum())) * torch.can_cast(x.dtype, torch.float32)
    ),
    "promote_types": lambda x: x.to(torch.promote_types(x.dtype, torch.bfloat16)) * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    check(PROGRAMS[name], x)
    check(PROGRAMS[name], x.clone().requires_grad_())


def _window_of_updated(x: Tensor) -> list[Tensor]:
    y = x * 2
    windows = y.unfold(1, 3, 1)
    y.mul_(3)
    return [windows * 2, y]


def _updated_blocks(x: Tensor) -> Tensor:
    y = x * 2
    y.unfold(1, 2, 2).mul_(3)
    return y * 1


def _window_of_updated_argument(x: Tensor) -> Tensor:
    windows = x.unfold(1, 3, 1)
    x.mul_(3)
    return windows * 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.unfold(1, 3, 1),
        lambda x: x.unfold(1, 2, 2),
        _window_of_updated,
        _updated_blocks,
        _window_of_updated_argument,
    ],
    ids=["windows", "blocks", "updated", "updated blocks", "updated argument"],
)
def test_windows_are_views(program: Callable[[Tensor], Any]) -> None:
    x = torch.randn(4, 6)
    assert not list(differences(ran(jit(program), [x]), ran(program, [x])))


def test_windows_with_gradients_of_updated_tensors_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="result of tensor_unfold"):
        jit(_window_of_updated)(torch.ones(4, 6, requires_grad=True))


def test_blocks_are_fused() -> None:
    compiled = jit(lambda x: x.sin().unfold(1, 2, 2) * 2)
    compiled(torch.ones(4, 6))
    assert not refusals(compiled)


def test_what_a_trace_cannot_have() -> None:
    x = torch.ones(4, 6)
    with pytest.raises(NotImplementedError, match="output_size"):
        jit(lambda x: x.repeat_interleave(REPEATS, 0))(x)
    with pytest.raises(NotImplementedError, match="triu_indices"):
        jit(lambda x: torch.combinations(x.flatten().repeat(20)))(x)
