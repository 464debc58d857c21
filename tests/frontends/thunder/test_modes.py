"""Calls under torch's modes: tracers record operations, default devices change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import thunder
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

import thunder_fuser
from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import FuserTypeError

Function = Callable[[torch.Tensor], torch.Tensor]


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * 2 + x.sum(-1, keepdim=True)


def defined() -> Function:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3], True, DataType.Float)
        total = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
        fd.add_output(fd.ops.add(fd.ops.mul(fd.ops.exp(x), 2.0), total))
    return lambda t: fd.execute([t])[0]


@pytest.fixture(scope="module", params=["jit", "definition"])
def function(request: pytest.FixtureRequest) -> Function:
    """Called before, so that its kernels are there."""
    if request.param == "definition":
        made = defined()
    else:
        made = thunder.jit(program, executors=[thunder_fuser.executor])
    made(torch.ones(2, 3))
    return made


@pytest.mark.parametrize(
    "options",
    [{}, {"pre_dispatch": True}, {"tracing_mode": "fake"}],
    ids=["real", "before autograd", "fake"],
)
def test_make_fx_records_operations(function: Function, options: dict[str, object]) -> None:
    recorded = make_fx(function, **options)(torch.ones(2, 3))
    x = torch.randn(2, 3)
    torch.testing.assert_close(recorded(x), program(x))


def test_jit_trace_records_operations() -> None:
    function = defined()
    recorded = torch.jit.trace(function, torch.ones(2, 3))
    x = torch.randn(2, 3)
    torch.testing.assert_close(recorded(x), program(x))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.vmap(f)(x[None]),
        lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.functionalize(f)(x),
    ],
    ids=["vmap", "grad", "jvp", "functionalize"],
)
def test_a_definition_under_a_transform_says_what_to_do(
    transform: Callable[[Function, torch.Tensor], object],
) -> None:
    with pytest.raises(FuserTypeError, match=r"vmap, grad, jvp .*call it outside"):
        transform(defined(), torch.ones(2, 3))


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("mode", [lambda: torch.device("meta"), default_device])
def test_compiling_is_not_changed_by_a_default_device(mode: Callable[[], object]) -> None:
    x = torch.randn(4, 6)
    with mode(), thunder_fuser.options(cuda_arch="sm_90"):  # type: ignore[attr-defined]
        with FusionDefinition() as fd:
            t = fd.from_pytorch(x)
            scale = fd.ops.mul(fd.define_scalar(0.3, DataType.Double), 2.0)
            drawn = fd.ops.uniform(0.0, 1.0, [4, 6])
            fd.add_output(fd.ops.sum(fd.ops.mul(t, scale), [1]))
            fd.add_output(
                fd.ops.where(fd.ops.gt(drawn, 2.0), t, fd.ops.full([4, 6], 1.5, DataType.Float))
            )
        total, chosen = fd.execute([x])
        assert fd.plan([x]).kernels
        assert "tf_" in fd.cuda_code_for([x])
    torch.testing.assert_close(total, x.sum(1) * 0.6)
    assert torch.equal(chosen, torch.full((4, 6), 1.5))


class Calls(TorchFunctionMode):
    """Every torch call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def test_compiling_shows_a_mode_nothing() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 7], True, DataType.BFloat16)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, 0.3), [1]))
    x = torch.ones(5, 7, dtype=torch.bfloat16)
    with Calls() as first:
        fd.execute([x])
    assert {torch.tensor, torch.Tensor.item}.isdisjoint(first.seen)


def test_tangents_of_forward_mode_go_through() -> None:
    """Kernels know no tangents: torch's operations run instead."""
    compiled = thunder.jit(lambda x: torch.sin(x) * 2, executors=[thunder_fuser.executor])
    x, tangent = torch.randn(2, 16)
    compiled(x)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, tangent)))
    torch.testing.assert_close(found.primal, torch.sin(x) * 2)
    torch.testing.assert_close(found.tangent, 2 * torch.cos(x) * tangent)
