"""Tables whose rows are spread over devices: each reads what it has, and the sum is the whole; sums
of partial results before they are communicated; pads beside a shard.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.sharding.checks import fusion_of, is_right, kinds, tensor
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.definition import DataType
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.sharding import DeviceMesh, Shard, outer, propagate, simulate

ROWS, WIDTH = 64, 6


def embedding(fd: Any) -> dict[str, Any]:
    table = tensor(fd, ROWS, WIDTH)
    index = fd.define_tensor(shape=[3, 5], contiguity=True, dtype=DataType.Int)
    fd.add_output(fd.ops.embedding_fwd(index, table, None, None, None, None, None))
    return {"table": table, "index": index}


def index_select(fd: Any) -> dict[str, Any]:
    table = tensor(fd, 4, ROWS, 3)
    index = fd.define_tensor(shape=[7], contiguity=True, dtype=DataType.Int)
    fd.add_output(fd.ops.index_select(table, index, 1))
    return {"table": table, "index": index}


def picked(fd: Any) -> dict[str, Any]:
    """What a cross-entropy reads of the logits: one column of each row."""
    table = tensor(fd, 4, ROWS)
    index = fd.define_tensor(shape=[4, 1], contiguity=True, dtype=DataType.Int)
    fd.add_output(fd.ops.take_along_axis(table, index, 1))
    return {"table": table, "index": index}


@pytest.mark.parametrize(("define", "dim"), [(embedding, 0), (index_select, 1), (picked, 1)])
@pytest.mark.parametrize("d", [2, 4])
def test_a_table_in_parts_is_read_in_parts(define: Any, dim: int, d: int) -> None:
    fusion, named = fusion_of(define)
    mesh = DeviceMesh((d,), ("tp",))
    found = propagate(fusion, mesh, {named["table"]: {"tp": outer(dim, ROWS, d)}})
    assert kinds(found) == ["all_reduce"]
    generator = torch.Generator().manual_seed(0)
    table, index = fusion.tensor_inputs
    given = [
        torch.randn(table.sizes, generator=generator, dtype=torch.float64),
        torch.randint(0, ROWS, index.sizes, generator=generator),
    ]
    if fusion.tensor_inputs[0].dtype is DataType.Int:
        given.reverse()
    (whole,) = evaluate(fusion, given).outputs
    for run in (simulate(found, given), simulate(found, given, lambda f, x: CompiledFusion(f)(x))):
        assert torch.equal(run[0], whole)
    # Rows that are dealt out one by one are no part of the table.
    dealt = propagate(fusion, mesh, {named["table"]: {"tp": Shard(dim, 1, d)}})
    assert kinds(dealt) == ["all_gather"]
    assert torch.equal(simulate(dealt, given)[0], whole)


def test_partial_sums_are_summed_before_they_are_sent() -> None:
    """Two products of one gradient, as a gated MLP's backward has them: one reduction."""

    def define(fd: Any) -> dict[str, Any]:
        a, b = tensor(fd, 4, 8), tensor(fd, 4, 8)
        up, gate = tensor(fd, 8, 6), tensor(fd, 8, 6)
        ops, half = fd.ops, DataType.Float
        parts = [ops.cast(ops.matmul(x, w), half) for x, w in ((a, up), (b, gate))]
        fd.add_output(ops.exp(ops.cast(ops.add(*parts), DataType.Double)))
        return {"a": a, "b": b, "up": up, "gate": gate}

    fusion, named = fusion_of(define)
    rows = {named[n]: {"tp": outer(0, 8, 2)} for n in ("up", "gate")}
    found = propagate(fusion, DeviceMesh((2,), ("tp",)), rows)
    (sent,) = [c for c in found.communications if c.kind != "slice"]
    # Before it is widened.
    assert sent.tensor.dtype is DataType.Float
    assert found.bytes == 4 * 6 * 4
    given = [torch.randn(t.sizes, dtype=torch.float64) for t in fusion.tensor_inputs]
    truth = evaluate(fusion, given).outputs
    torch.testing.assert_close(simulate(found, given), truth, rtol=1e-5, atol=1e-5)


def test_a_pad_beside_a_shard_is_local() -> None:
    def define(fd: Any) -> dict[str, Any]:
        x = tensor(fd, 8, 6)
        fd.add_output(fd.ops.pad(x, [1, 2]))
        return {"x": x}

    fusion, named = fusion_of(define)
    mesh = DeviceMesh((2,), ("tp",))
    beside = propagate(fusion, mesh, {named["x"]: {"tp": outer(0, 8, 2)}})
    assert kinds(beside) == []
    assert is_right(beside)
    along = propagate(fusion, mesh, {named["x"]: {"tp": outer(1, 6, 2)}})
    assert kinds(along) == ["all_gather"]
    assert is_right(along)


def test_a_bias_is_added_once() -> None:
    def define(fd: Any) -> dict[str, Any]:
        x, w, bias = tensor(fd, 4, 8), tensor(fd, 6, 8), tensor(fd, 6)
        fd.add_output(fd.ops.linear(x, w, bias))
        return {"x": x, "w": w, "bias": bias}

    fusion, named = fusion_of(define)
    found = propagate(fusion, DeviceMesh((4,), ("tp",)), {named["w"]: {"tp": outer(1, 8, 4)}})
    assert kinds(found) == ["all_reduce"]
    assert is_right(found)
