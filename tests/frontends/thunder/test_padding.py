"""Pads with elements of the tensor itself: values, strides, errors, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import thunder_fuser
from tests.frontends.thunder.programs import jit
from tests.support.shares import each_value

MODES = ("reflect", "replicate", "circular")
CASES = [
    ((2, 3, 8), (2, 3)),
    ((3, 8), (1, 0)),
    ((2, 3, 8), (-2, 3)),
    ((2, 3, 8), (2, -1)),
    ((2, 3, 8), (-2, -3)),
    ((3, 6, 7), (1, 1, 1, 1)),
    ((2, 3, 6, 7), (2, 1, 3, 4)),
    ((2, 3, 6, 7), (2, -1, -3, 2)),
    ((1, 2, 4, 5, 6), (1, 2, 2, 1, 0, 3)),
]


def padded(mode: str, *inputs: Tensor) -> list[Tensor]:
    return [F.pad(x * 2, w, mode) * 3 for x, (_, w) in zip(inputs, CASES, strict=True)]


@each_value(mode=MODES, dtype=[torch.float32, torch.int64])
def test_pads_are_as_in_torch(mode: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape).mul(8).to(dtype) for shape, _ in CASES]
    results = jit(partial(padded, mode))(*inputs)
    for case, found, expected in zip(CASES, results, padded(mode, *inputs), strict=True):
        assert torch.equal(found, expected), case
        assert found.stride() == expected.stride(), case


@pytest.mark.parametrize("dtype", [torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_rounded_once(mode: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=dtype).requires_grad_() for shape, _ in CASES]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    results = jit(partial(padded, mode))(*inputs)
    gradients = [torch.randn_like(y) for y in results]
    torch.autograd.backward(results, gradients)
    torch.autograd.backward(padded(mode, *exact), [g.double() for g in gradients])
    # `* 3`, the sum, and `* 2` are rounded.
    rtol = 2 * torch.finfo(dtype).eps
    for x, y in zip(inputs, exact, strict=True):
        assert x.grad is not None
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=rtol, atol=8 * rtol)


def test_a_pad_is_one_kernel_with_its_readers() -> None:
    program = jit(lambda x: F.pad(x.sin(), (1, 1, 1, 1), "reflect").cos())
    program(torch.randn(1, 2, 8, 8))
    (fusion,) = thunder_fuser.fusions(program)
    assert len(fusion.kernels) == 1
    assert not thunder_fuser.refusals(program)


@pytest.mark.parametrize(
    ("shape", "widths", "dtype"),
    [
        ((2, 3, 4), (4, 0), torch.float32),
        ((2, 3, 4), (1, 1, 1, 1, 1, 1), torch.float32),
        ((2, 3, 4), (1, 1), torch.bool),
    ],
)
def test_torch_s_errors(shape: Sequence[int], widths: Sequence[int], dtype: torch.dtype) -> None:
    x = torch.ones(shape, dtype=dtype)
    with pytest.raises((RuntimeError, NotImplementedError)) as eager:
        F.pad(x, widths, "reflect")
    with pytest.raises(type(eager.value)) as ours:
        jit(lambda x: F.pad(x, widths, "reflect"))(x)
    assert str(ours.value)[:40] == str(eager.value)[:40]


def test_elements_that_a_negative_width_removed_are_not_wrapped_around() -> None:
    with pytest.raises(NotImplementedError, match="of which negative widths leave 3"):
        jit(lambda x: F.pad(x, (0, 0, -3, 4), "circular"))(torch.ones(2, 3, 6, 7))


@pytest.mark.parametrize("mode", [*MODES, "constant"])
def test_memory_formats_are_torch_s(mode: str) -> None:
    x = torch.randn(2, 3, 6, 7).to(memory_format=torch.channels_last)
    found = jit(lambda x: F.pad(x, (1, 1, 1, 1), mode))(x)
    assert found.stride() == F.pad(x, (1, 1, 1, 1), mode).stride()


def test_convolutions_with_padding_modes() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        torch.nn.ReflectionPad2d(2),
        torch.nn.ReplicationPad2d((1, 0, 0, 1)),
    )
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(jit(module)(x), module(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.uint8], ids=str)
def test_a_value_that_is_written_nowhere_may_be_too_large(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [F.pad(x, widths, value=1e300) for widths in ((0, 0), (-1, 0), (0, 0, -1, -1))]

    x = torch.arange(12).reshape(3, 4).to(dtype)
    torch.testing.assert_close(jit(program)(x), program(x), rtol=0, atol=0)
    value = -1 if dtype is torch.uint8 else 1e300
    for call in (
        jit(partial(F.pad, pad=(0, 1), value=value)),
        partial(F.pad, pad=(0, 1), value=value),
    ):
        with pytest.raises(RuntimeError, match="without overflow"):
            call(x)
