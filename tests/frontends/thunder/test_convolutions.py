"""Convolutions through Thunder: one call forward, one for the gradients; biases are fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from thunder.core import prims
from thunder.core.devices import cpu
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from torch import Tensor
from torch.nn import functional as F

import thunder_fuser
from tests.frontends.thunder.programs import check, fake, jit
from thunder_fuser import fusions
from thunder_fuser.frontends.thunder.autograd.convolution import NAMES
from thunder_fuser.frontends.thunder.trace.joint_gradients import with_joint_gradients

FORWARD, OF_INPUT, OF_WEIGHT, GRADIENTS = NAMES
# Function, shapes of the image and the weight, options.
CASES: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": (F.conv1d, (2, 4, 9), (6, 4, 3), {"stride": 3, "padding": 2}),
    "2d": (
        F.conv2d,
        (2, 4, 9, 8),
        (6, 2, 3, 3),
        {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2},
    ),
    "3d": (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), {}),
    "same": (F.conv2d, (2, 4, 9, 8), (6, 4, 3, 3), {"padding": "same"}),
    "one image": (F.conv2d, (4, 9, 8), (6, 4, 3, 3), {"padding": 1}),
    "no image": (F.conv2d, (0, 4, 9, 8), (6, 4, 3, 3), {"padding": 1}),
}


def calls(compiled: Any) -> list[str]:
    traces = [thunder.last_traces(compiled)[-1], *thunder.last_backward_traces(compiled)[-1:]]
    return [b.sym.name for t in traces for b in t.bound_symbols if "convolution" in b.sym.name]


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, device: torch.device) -> None:
    function, image, weight, options = CASES[name]
    torch.manual_seed(0)
    x, w, b = (torch.randn(s, requires_grad=True) for s in (image, weight, weight[:1]))

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return function(F.silu(x), w, b, **options) * 2

    compiled = check(program, x, w, b, device=device)
    assert calls(compiled) == [FORWARD, GRADIENTS]


def test_an_image_without_gradient_costs_none() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
    assert calls(check(lambda x, w: F.relu(F.conv2d(x, w)), x, w)) == [FORWARD, OF_WEIGHT]
    assert calls(check(lambda x, w: F.conv2d(x, w), x, w.detach())) == [FORWARD]
    x.requires_grad_()
    assert calls(check(lambda x, w: F.conv2d(x, w), x, w.detach())) == [FORWARD, OF_INPUT]


def test_each_convolution_has_its_gradients() -> None:
    """Of one image by two weights, of one weight with two images, and one that is repeated."""
    torch.manual_seed(0)
    x, v, w = (
        torch.randn(s, requires_grad=True) for s in ((2, 4, 8, 8), (4, 4, 3, 3), (4, 4, 3, 3))
    )

    def program(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        both = F.conv2d(x, v, padding=1) * F.conv2d(x, w, padding=1)
        return F.silu(both) * F.conv2d(both, w, padding=1) + F.conv2d(x, w, padding=2, dilation=2)

    assert calls(check(program, x, v, w)) == [FORWARD] * 4 + [GRADIENTS] * 4


def test_an_update_parts_the_calls_for_the_gradients() -> None:
    """Neither call may move across it: it might write what they read."""
    executor = thunder_fuser.executor
    _, of_input, of_weight, joint = map(executor.opmap.__getitem__, NAMES)
    trace = TraceCtx()
    with tracectx(trace):
        x, w, g = (
            TensorProxy(shape=s, device=cpu, dtype=thunder.float32, requires_grad=False)
            for s in ((1, 2, 4, 4), (3, 2, 1, 1), (1, 3, 4, 4))
        )
        options = (1, 1), (0, 0), (1, 1), False, (0, 0), 1
        image = of_input(g, x, w, *options)
        prims.copy_(prims.neg(image), x, grad_enabled=False)
        weight = of_weight(g, x, w, *options)
        prims.python_return((image, weight))
    names = [b.sym.name for b in with_joint_gradients(trace).bound_symbols]
    assert names == [OF_INPUT, "neg", "copy_", OF_WEIGHT, "python_return"]
    update = next(b for b in trace.bound_symbols if b.sym.name == "copy_")
    trace.bound_symbols.remove(update)
    names = [b.sym.name for b in with_joint_gradients(trace).bound_symbols]
    assert names == [joint.name, "python_return"]


@pytest.mark.parametrize("grad", [False, True])
def test_a_gpus_bias_is_fused_with_what_reads_it(grad: bool) -> None:
    x, w, b = fake((2, 8, 16, 16), (4, 8, 3, 3), (4,), dtype=torch.bfloat16, grad=grad)
    compiled = jit(lambda x, w, b: F.silu(F.conv2d(x, w, b)))
    thunder.compile_data(compiled).get_computation_and_inputs(x, w, b)
    plans = [report.plan for report in fusions(compiled)]
    assert [plan.kernels for plan in plans] == [1, 1][: 1 + grad]
    assert all(plan.bytes == plan.bytes_ideal for plan in plans)


def test_a_pool_is_torchs() -> None:
    """Thunder writes it as a convolution."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    assert calls(check(lambda x: F.max_pool2d(F.relu(x), 3, 2, 1) * 2, x)) == []
