"""Torch calls in the IR and in plans: every row runs, prints, is copied, and stands alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.frontends.definition.rebuilding import executed
from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.device_table import H200
from thunder_fuser.errors import FuserError, InternalError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.extract import extract
from thunder_fuser.ir.fusion import OpaqueOp
from thunder_fuser.ir.printer import equal
from thunder_fuser.ir.rebuild import rebound
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.ir.tables import opaque
from thunder_fuser.ir.verify import verify
from thunder_fuser.passes.common_subexpressions import common_subexpressions
from thunder_fuser.segment.planner import partition
from thunder_fuser.templates.estimate import estimated

Build = Callable[[Any, list[Any]], Any]


def _x(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


_QKV = [_x(2, 3, 8, 16), _x(2, 3, 12, 16), _x(2, 3, 12, 16) + 1]
_PLACES = torch.tensor([3, 0, 4])


def _attention_gradient(ops: Any, t: list[Any]) -> Any:
    output, logsumexp, seed, offset = ops.sdpfa_fwd(*t[:3], 0.0, False)
    return ops.sdpfa_bwd(t[3], *t[:3], output, logsumexp, 0.0, False, seed, offset, None)


CASES: dict[str, tuple[list[torch.Tensor], Build]] = {
    "linear": ([_x(2, 5, 8), _x(3, 8), _x(3)], lambda ops, t: ops.linear(*t)),
    "matmul": ([_x(2, 1, 5, 8), _x(3, 8, 4)], lambda ops, t: ops.matmul(*t)),
    "bmm": ([_x(2, 5, 8), _x(2, 8, 4)], lambda ops, t: ops.bmm(*t)),
    "baddbmm": (
        [_x(5, 1), _x(2, 5, 8), _x(2, 8, 4)],
        lambda ops, t: ops.baddbmm(*t, beta=0.5, alpha=2.0),
    ),
    "grouped_mm": (
        [_x(6, 8), _x(3, 8, 4), torch.tensor([2, 2, 6], dtype=torch.int32)],
        lambda ops, t: ops.grouped_mm(*t),
    ),
    "scaled_mm": (
        [
            _x(16, 32, dtype=torch.float8_e4m3fn),
            _x(16, 32, dtype=torch.float8_e4m3fn),
            torch.tensor(0.5),
            torch.tensor(2.0),
        ],
        lambda ops, t: ops.scaled_mm(t[0], ops.permute(t[1], [1, 0]), *t[2:]),
    ),
    "sdpfa_fwd": (_QKV, lambda ops, t: ops.sdpfa_fwd(*t, is_causal=True)[:2]),
    "sdpfa_bwd": ([*_QKV, _x(2, 3, 8, 16)], _attention_gradient),
    "convolution": (
        [_x(2, 4, 9, 7), _x(6, 2, 3, 3), _x(6)],
        lambda ops, t: ops.convolution(*t, stride=[2, 1], padding=1, groups=2),
    ),
    "scatter": (
        [_x(5, 4), _PLACES[:, None].expand(3, 4).contiguous(), _x(3, 4)],
        lambda ops, t: ops.scatter(*t, dim=0),
    ),
    "scatter_add": (
        [_x(5, 4), torch.tensor([[1], [1], [0]]), _x(3, 1)],
        lambda ops, t: ops.scatter_add(*t, 0),
    ),
    "index_add": ([_x(4, 5), _PLACES, _x(4, 3)], lambda ops, t: ops.index_add(*t, 1)),
    "index_copy": ([_x(4, 5), _PLACES, _x(4, 3)], lambda ops, t: ops.index_copy(*t, -1)),
    "index_put_accumulate": (
        [_x(5, 4), torch.tensor([1, 1, 3]), _x(3, 4)],
        lambda ops, t: ops.index_put_accumulate(*t),
    ),
    "embedding_backward": (
        [_x(2, 3, 4), torch.tensor([[0, 5, 5], [1, 0, 5]])],
        lambda ops, t: ops.embedding_backward(*t, rows=7),
    ),
    "sort": ([_x(4, 9)], lambda ops, t: ops.sort(*t, dim=0, descending=True)),
    "argsort": ([_x(4, 9)], lambda ops, t: ops.argsort(*t, -1, stable=True)),
    "topk": ([_x(4, 9)], lambda ops, t: ops.topk(*t, 3)),
}
"""Inputs, and what is called with them."""


def definition(name: str, *, around: bool) -> tuple[FusionDefinition, list[torch.Tensor]]:
    """The call by itself, or with arithmetic before and behind it."""
    inputs, build = CASES[name]
    with FusionDefinition() as fd:
        given = [fd.from_pytorch(x) for x in inputs]
        wide = [x.is_floating_point() and x.dtype is torch.float32 for x in inputs]
        read = [fd.ops.mul(t, 0.5) if w and around else t for t, w in zip(given, wide, strict=True)]
        made = build(fd.ops, read)
        for result in made if isinstance(made, tuple) else (made,):
            is_float = result.dtype() in (DataType.Float, DataType.BFloat16)
            fd.add_output(fd.ops.add(result, 1.0) if around and is_float else result)
    return fd, inputs


def test_every_row_has_a_case() -> None:
    # Devices among themselves: tests/sharding.
    among_devices = {"all_gather", "all_reduce", "all_to_all", "reduce_scatter"}
    assert CASES.keys() | among_devices == opaque.TABLE.keys()


@pytest.mark.parametrize("around", [False, True], ids=["alone", "fused"])
@pytest.mark.parametrize("name", CASES)
def test_calls_run_and_are_what_torch_gives_in_float64(name: str, around: bool) -> None:
    fd, inputs = definition(name, around=around)
    plan = fd.plan(inputs)
    assert plan.calls == (2 if name == "sdpfa_bwd" else 1)
    assert bool(plan.kernels) == around or name in ("argsort", "scaled_mm")
    truth = evaluate(rebound(fd.fusion, _fixed(fd, inputs)), inputs, double=True).outputs
    for found, expected in zip(fd.validate(inputs), truth, strict=True):
        assert found.shape == expected.shape
        loose = 5e-2 if name == "scaled_mm" else 1e-4
        torch.testing.assert_close(found.double(), expected.double(), rtol=loose, atol=loose)


def _fixed(fd: FusionDefinition, inputs: list[torch.Tensor]) -> Callable[[Any], Any]:
    sizes = {}
    for view, x in zip(fd.fusion.inputs, inputs, strict=True):
        for extent, size in zip(view.domain.shape, x.shape, strict=True):
            if not isinstance(extent, int):
                sizes.update({v.name: size for v in extent.variables()})
    return lambda extent: extent if isinstance(extent, int) else extent.evaluate(sizes)


@pytest.mark.parametrize("name", CASES)
def test_calls_are_printed_copied_and_cut_out_as_they_are(name: str) -> None:
    fd, inputs = definition(name, around=True)
    assert equal(executed(repr(fd)), fd.fusion)
    fusion = verify(rebound(fd.fusion, _fixed(fd, inputs)), "specialised")
    assert equal(rebound(fusion, lambda extent: extent), fusion)
    assert equal(extract(fusion, fusion.outputs, set(), {}).fusion, fusion)
    (segment, *_) = [s for s in partition(fusion).segments if s.kind == "opaque"]
    compile(segment.repro(), "repro", "exec")
    assert equal(
        executed(segment.repro().split("\n\n", 3)[3].split("\n\n\nwith")[0]), segment.fusion
    )


def test_a_call_with_several_results_is_one_call() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 9], DataType.Float)
    attributes = {"k": 3, "dim": 1, "largest": True, "sorted": True}
    values, places = b.call("topk", {"arg": x}, attributes)
    again, _ = b.call("topk", {"arg": x}, attributes)
    b.output(b.pointwise("add", values, again))
    b.output(places)
    merged = common_subexpressions(b.build())
    assert len(merged.calls()) == 1
    plan = partition(merged)
    assert (plan.calls, plan.kernels) == (1, 1)


def test_calls_that_draw_numbers_draw_others() -> None:
    b = FusionBuilder()
    q = b.tensor([1, 2, 4, 8], DataType.Half)
    attributes = {"dropout_p": 0.5, "is_causal": False, "scale": None}
    operands = {"query": q, "key": q, "value": q}
    first, second = (b.call("sdpfa_fwd", operands, attributes)[0] for _ in range(2))
    b.output(b.pointwise("sub", first, second))
    assert len(common_subexpressions(b.build()).calls()) == 2


def test_two_gradients_with_a_product_between_them_are_one_kernel() -> None:
    with FusionDefinition() as fd:
        g, x, w, v = (fd.define_tensor([64, 64], True) for _ in range(4))
        one = fd.ops.matmul(fd.ops.mul(g, x), w)
        two = fd.ops.matmul(fd.ops.mul(g, fd.ops.neg(x)), v)
        fd.add_output(fd.ops.add(one, two))
    plan = fd.plan()
    assert [s.kind for s in plan.segments] == ["pointwise", "opaque", "opaque", "pointwise"]
    assert plan.bytes == plan.bytes_ideal
    assert plan.segments[1].flops == 2 * 64**3
    assert {b.producer for b in plan.boundaries} == {0, 1, 2}


def test_a_call_takes_its_bytes_or_its_arithmetic() -> None:
    seconds, bounds = [], []
    for sizes in ([4096, 4096], [1, 4096]):
        with FusionDefinition() as fd:
            x, w = (fd.define_tensor(s, True, DataType.BFloat16) for s in (sizes, [4096, 4096]))
            fd.add_output(fd.ops.linear(x, w))
        (segment,) = estimated(partition(fd.fusion), H200).segments
        assert segment.estimate is not None
        seconds.append(segment.seconds)
        bounds.append(segment.estimate.bound)
    assert bounds == ["arithmetic", "memory"]
    assert seconds[0] > 2 * 4096**3 / 1.1e15
    assert seconds[1] > 4096**2 * 2 / 4.8e12
    assert sum(seconds) < 2e-4


def test_a_kernel_does_not_enclose_a_call() -> None:
    """exp(x) and what comes behind the product read the same, and are two kernels."""
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor([32, 32], True) for _ in range(2))
        y = fd.ops.exp(x)
        fd.add_output(y)
        fd.add_output(fd.ops.mul(fd.ops.matmul(y, w), x))
    plan = fd.plan()
    assert [s.kind for s in plan.segments] == ["pointwise", "opaque", "pointwise"]


def test_an_input_that_a_call_reads_is_updated_when_it_has_run() -> None:
    x, w = _x(16, 16), _x(16, 16)
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(x), fd.from_pytorch(w)
        y = fd.ops.mul(a, 2.0)
        fd.add_output(y, a)
        fd.add_output(fd.ops.matmul(fd.ops.permute(a, [1, 0]), b))
    expected = x.T @ w
    given = x.clone()
    (found,) = fd.execute([given, w])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(given, 2 * x)


def test_sizes_may_be_open_and_must_agree() -> None:
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor([-1, -1], True) for _ in range(2))
        fd.add_output(fd.ops.relu(fd.ops.linear(x, w)))
    plan = fd.plan()
    assert str(plan.bytes) == str(plan.bytes_ideal)
    assert plan.sizes is not None
    assert list(plan.sizes.places) == ["i0", "i1", "i2"]
    with pytest.raises(FuserError, match="linear"):
        fd.execute([_x(3, 4), _x(5, 6)])
    with FusionDefinition() as fd, pytest.raises(FuserError, match="they must be one size"):
        fd.ops.linear(fd.define_tensor([3, 4]), fd.define_tensor([5, 6]))


def test_errors_of_torch_name_the_call_and_what_it_got() -> None:
    with FusionDefinition() as fd:
        x, index = fd.define_tensor([4, 8], True), fd.define_tensor([3], True, DataType.Int)
        fd.add_output(fd.ops.index_add(x, index, fd.define_tensor([2, 8], True), 0))
    told = r"Number of indices \(3\).*\(in index_add at .*test_opaque\.py:\d+, of arg torch.float32"
    with pytest.raises(RuntimeError, match=told):
        fd.execute([_x(4, 8), torch.zeros(3, dtype=torch.int64), _x(2, 8)])


@pytest.mark.parametrize(
    ("weight", "options", "told"),
    [
        ([4, 3, 5, 5], {}, r"window of \[5, 5\] does not fit into the input of \[4, 4\]"),
        ([4, 3, 3, 3], {"stride": [0]}, r"stride: expected one number or 2, each at least 1"),
        (
            [4, 3, 3, 3],
            {"padding": [1] * 3},
            r"padding: expected one number or 2, .*got \[1, 1, 1\]",
        ),
    ],
)
def test_convolutions_that_have_no_result(
    weight: list[int], options: dict[str, list[int]], told: str
) -> None:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([2, 3, 4, 4], True), fd.define_tensor(weight, True)
        with pytest.raises(FuserError, match=told):
            fd.ops.convolution(x, w, **options)


def test_what_is_not_well_formed() -> None:
    b = FusionBuilder()
    x = b.tensor([4, 9], DataType.Float)
    values, places = b.call("sort", {"arg": x}, {"dim": 1, "descending": False, "stable": True})
    b.output(values)
    b.output(places)
    fusion = verify(b.build())
    first, second = fusion.exprs
    assert isinstance(first, OpaqueOp)
    assert isinstance(second, OpaqueOp)
    for changed, problem in (
        (replace(second, result=0), "two results of a call are the same one"),
        (replace(second, op="topk"), "is of the same call, and another operation"),
        (replace(second, result=5), "index out of range"),
    ):
        with pytest.raises(InternalError, match=problem):
            verify(replace(fusion, exprs=(first, changed)))
