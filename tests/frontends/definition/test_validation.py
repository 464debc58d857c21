"""fd.validate: right results pass, wrong ones do not, and memory holds what is still needed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.generator import random_case
from thunder_fuser.errors import FuserError
from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor
from thunder_fuser.frontends.definition.validation.compare import check_outputs, expected_outputs
from thunder_fuser.frontends.definition.validation.rounding import ErrorAnalysis
from thunder_fuser.ir.reference import Evaluator, evaluate

Float, BFloat16 = DataType.Float, DataType.BFloat16
CPU = torch.device("cpu")


def defined(define: Callable[..., Any], *inputs: torch.Tensor) -> FusionDefinition:
    with FusionDefinition() as fd:
        made = define(fd.ops, *map(fd.from_pytorch, inputs))
        for value in [made] if isinstance(made, Tensor) else made:
            fd.add_output(value)
    return fd


def softmax(o: Any, x: Tensor) -> Tensor:
    x = o.cast(x, Float)
    powers = o.exp(o.sub(x, o.max(x, [1], keepdim=True)))
    return o.cast(o.div(powers, o.sum(powers, [1], keepdim=True)), BFloat16)


def layer_norm(o: Any, x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    var, mean = o.var_mean(x, [1], correction=0, keepdim=True)
    scaled = o.mul(o.sub(x, mean), o.rsqrt(o.add(var, 1e-5)))
    return [o.add(o.mul(scaled, w), b), mean, var]


def gelu(o: Any, x: Tensor) -> Tensor:
    x = o.cast(x, Float)
    inner = o.mul(math.sqrt(2 / math.pi), o.add(x, o.mul(0.044715, o.pow(x, 3.0))))
    return o.cast(o.mul(o.mul(x, 0.5), o.add(1.0, o.tanh(inner))), DataType.Half)


def inputs_of(name: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    match name:
        case "column sum":
            return [torch.rand(512, 64, generator=generator)]
        case "column sum of equal numbers":
            return [torch.full((4096, 8), 0.1)]
        case "softmax":
            return [torch.randn(16, 300, generator=generator).bfloat16()]
        case "gelu":
            return [torch.randn(64, 9, generator=generator).half()]
        case "norm of large numbers":
            x = torch.randn(8, 500, generator=generator) + 100
            return [x, torch.ones(500), torch.zeros(500)]
        case _:
            return [torch.randn(8, 500, generator=generator), torch.ones(500), torch.zeros(500)]


def of_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    mean, var = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
    return [F.layer_norm(x, (500,), w, b), mean, var]


RIGHT: dict[str, tuple[Callable[..., Any], Callable[..., list[torch.Tensor]]]] = {
    "column sum": (lambda o, x: o.sum(x, [0]), lambda x: [x.sum(0)]),
    "column sum of equal numbers": (lambda o, x: o.sum(x, [0]), lambda x: [x.sum(0)]),
    "softmax": (softmax, lambda x: [x.softmax(1)]),
    "gelu": (gelu, lambda x: [F.gelu(x, approximate="tanh")]),
    "norm": (layer_norm, of_norm),
    "norm of large numbers": (layer_norm, of_norm),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_results_pass_and_wrong_ones_do_not(name: str) -> None:
    """Against float64, against eager torch, and with an error of the largest element: of 1 %, or of
    25 % where a reference in 16 bits may have rounded after every operation.
    """
    define, eager = RIGHT[name]
    inputs = inputs_of(name)
    fd = defined(define, *inputs)
    fd.validate(inputs)
    outputs = fd.validate(inputs, eager(*inputs))
    expected = expected_outputs(fd.fusion.plain, inputs, None, None)
    for k, output in enumerate(outputs):
        place = tuple(int(i) for i in (output.abs() == output.abs().max()).nonzero()[0])
        wrong = [t.clone() for t in outputs]
        wrong[k][place] *= 1.01 if output.dtype is torch.float32 else 1.25
        message = f"1 of {output.numel()} elements of output {k} differ; at {place}: got "
        with pytest.raises(FuserError, match=re.escape(message)):
            check_outputs(wrong, expected)
        with pytest.raises(FuserError, match=re.escape(message)):
            fd.validate(inputs, [*eager(*inputs)[:k], wrong[k], *eager(*inputs)[k + 1 :]])


def test_tolerances_follow_operations_and_lengths() -> None:
    def allowed(define: Callable[..., Any], *inputs: torch.Tensor) -> float:
        fusion = defined(define, *inputs).fusion.plain
        (expected,) = expected_outputs(fusion, list(inputs), None, None)
        return expected.tolerance.max().item()

    eps = torch.finfo(torch.float32).eps
    ones = torch.ones
    assert allowed(lambda o, x: o.neg(x), ones(4)) == 0
    assert allowed(lambda o, x: o.mul(x, 3.0), ones(4)) == pytest.approx(3 * eps, rel=0.1)
    short, long = (allowed(lambda o, x: o.sum(x, [0]), ones(n)) / n for n in (64, 16384))
    assert 4 < long / short < 16
    assert long < 512 * eps
    assert allowed(lambda o, x: o.sub(o.mul(x, 3.0), 3.0), ones(4)) > eps  # exactly 0, and yet
    assert allowed(lambda o, x: o.cast(x, BFloat16), ones(4)) == pytest.approx(2**-7, rel=0.1)
    assert allowed(lambda o, x: o.gt(o.mul(x, 3.0), 3.0), ones(4)) > 0  # may be either
    assert allowed(lambda o, x: o.gt(o.mul(x, 3.0), 2.0), ones(4)) == 0
    assert allowed(lambda o, x: o.argmax(o.exp(x), 0), torch.arange(4.0)) == 0
    assert allowed(lambda o, x: o.argmax(o.exp(x), 0), ones(4)) == math.inf


def test_integers_and_bools_are_compared_exactly() -> None:
    x = torch.randint(-50, 50, (6, 7))
    fd = defined(lambda o, x: [o.sum(x, [1]), o.gt(x, 3)], x)
    total, larger = fd.validate([x])
    with pytest.raises(FuserError, match=r"output 0 differ; at \(2,\): got .* within 0"):
        fd.validate([x], [total + torch.tensor([0, 0, 1, 0, 0, 0]), larger])
    with pytest.raises(FuserError, match="42 of 42 elements of output 1 differ"):
        fd.validate([x], [total, ~larger])


def test_the_analysis_covers_what_torch_rounds() -> None:
    """Random programs, computed one operation at a time in their own dtypes."""
    checked = 0
    for seed in range(80):
        case = random_case(seed, max_numel=200, reductions=seed % 2 == 0, gathers=seed % 3 == 0)
        found = evaluate(case.fusion, case.inputs).outputs
        check_outputs(found, expected_outputs(case.fusion, case.inputs, None, None))
        analysis = ErrorAnalysis(CPU)
        analysis.run_all(case.fusion, case.inputs)
        for tensor, value in zip(case.fusion.outputs, found, strict=True):
            exact = analysis.result(tensor)
            bound = analysis.errors.get(tensor, torch.zeros(()))
            if exact.is_floating_point() and value.to(exact.dtype).isfinite().all():
                assert ((value.to(exact.dtype) - exact).abs() <= 2 * bound).all(), (seed, tensor)
                checked += 1
    assert checked > 40


def test_values_are_held_as_long_as_they_are_read() -> None:
    """A chain of any length takes the memory of a few tensors."""

    def chain(o: Any, x: Tensor) -> list[Tensor]:
        y = o.exp(x)
        first = o.sum(y, [0])
        for _ in range(40):
            y = o.add(o.tanh(y), 1.0)
        return [first, y]

    with FusionDefinition() as fd:
        for value in chain(fd.ops, fd.define_tensor([8], True)):
            fd.add_output(value)
    fusion = fd.fusion.plain
    held: list[int] = []

    class Watched(Evaluator):
        def run(self, expr: Any) -> None:
            super().run(expr)
            held.append(len(self.values))

    class WatchedAnalysis(ErrorAnalysis):
        def run(self, expr: Any) -> None:
            super().run(expr)
            held.append(max(len(self.values), len(self.errors)))

    for watched in (Watched(False, CPU), WatchedAnalysis(CPU)):
        held.clear()
        watched.run_all(fusion, [torch.randn(8)])
        assert len(held) == 82
        assert max(held) <= 4
        assert set(watched.values) == set(fusion.outputs)
