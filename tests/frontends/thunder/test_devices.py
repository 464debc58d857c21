"""Devices that code reads of tensors, makes and compares are torch's; new tensors lie on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.frontends.thunder.programs import check, fake, jit, traced

HOST = torch.device("cpu")
FACTORS = {HOST: 2.0, torch.device("meta"): 3.0}


def asked(x: Tensor, given: torch.device) -> list[Any]:
    found = x.device
    return [
        isinstance(found, torch.device),
        found == HOST and found == given,
        found != HOST,
        torch.device("cpu") == found,
        torch.device(type="cpu") == HOST,
        found == torch.device("cpu", 0),
        found == "cpu",
        str(found) == f"{HOST}",
        found.type,
        found.index,
        torch.device(found) == torch.zeros(2, device=found).device,
        x.to(found).device == (x + 1).device,
    ]


def test_a_device_is_torchs() -> None:
    x = torch.ones(2)
    assert jit(asked)(x, HOST) == asked(x, HOST)
    check(lambda x: x * FACTORS[x.device], x)


def test_a_device_without_an_index_is_another_than_one_with() -> None:
    def program(x: Tensor) -> Tensor:
        is_first = x.device == torch.device("cuda", 0) and x.device != torch.device("cuda")
        return torch.sin(x) * 2 if is_first else x

    (fusion,) = traced(program, *fake([4, 8], dtype=torch.float32))
    assert len(fusion.fusion.exprs) == 2


NEW: dict[str, Callable[[Any, Any], Tensor]] = {
    "scalar_tensor": lambda device, dtype: torch.scalar_tensor(3, dtype=dtype, device=device),
    "scalar_tensor of floats": lambda device, _: torch.scalar_tensor(3, device=device),
    "scalar_tensor of a bool": lambda device, _: torch.scalar_tensor(True, device=device),
    "hann_window": lambda device, dtype: torch.hann_window(3, dtype=dtype, device=device),
    "kaiser_window": lambda device, dtype: torch.kaiser_window(3, dtype=dtype, device=device),
    "triu_indices": lambda device, _: torch.triu_indices(3, 3, device=device)[0, :3],
    "logspace": lambda device, dtype: torch.logspace(0, 1, 3, dtype=dtype, device=device),
    "fftfreq": lambda device, dtype: torch.fft.fftfreq(3, dtype=dtype, device=device),
    "rfftfreq": lambda device, _: torch.fft.rfftfreq(4, device=device),
}


@pytest.mark.parametrize("name", NEW)
def test_new_tensors_on_the_device_of_another(name: str) -> None:
    def program(x: Tensor) -> list[Tensor]:
        new = NEW[name](x.device, x.dtype)
        return [new, x * new]

    check(program, torch.randn(3, 3, requires_grad=True))


def test_scalar_tensors_are_fused() -> None:
    def program(x: Tensor) -> Tensor:
        return (x - torch.scalar_tensor(3, device=x.device)).sin() * 2

    check(program, torch.randn(4, 4), fusion_count=1)
