"""A transformer's MLP and attention, tensor parallel: what Megatron communicates, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sharding.checks import fusion_of, is_right, kinds, tensor
from thunder_fuser.frontends.definition import DataType
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.sharding import DeviceMesh, Shard, Shardings, outer, propagate
from thunder_fuser.sharding.mesh import Placement

BATCH, LENGTH, WIDTH, HIDDEN, HEADS = 2, 4, 32, 128, 4


def mlp(fd: Any) -> dict[str, Any]:
    x, up, down = (
        tensor(fd, BATCH, LENGTH, WIDTH),
        tensor(fd, HIDDEN, WIDTH),
        tensor(fd, WIDTH, HIDDEN),
    )
    y = fd.ops.add(x, fd.ops.linear(fd.ops.relu(fd.ops.linear(x, up)), down))
    fd.add_output(y)
    return {"x": x, "up": up, "down": down, "y": y}


def mlp_backward(fd: Any) -> dict[str, Any]:
    """Gradients of x and of both weights, computed as autograd does."""
    x, up, down = (
        tensor(fd, BATCH * LENGTH, WIDTH),
        tensor(fd, HIDDEN, WIDTH),
        tensor(fd, WIDTH, HIDDEN),
    )
    dy = tensor(fd, BATCH * LENGTH, WIDTH)
    ops = fd.ops
    h = ops.relu(ops.linear(x, up))
    dh = ops.matmul(dy, down)
    dh = ops.where(ops.gt(h, 0.0), dh, 0.0)
    dx = ops.add(dy, ops.matmul(dh, up))
    d_up, d_down = ops.matmul(ops.permute(dh, [1, 0]), x), ops.matmul(ops.permute(dy, [1, 0]), h)
    for out in (dx, d_up, d_down):
        fd.add_output(out)
    return {"x": x, "up": up, "down": down, "dy": dy, "dx": dx, "d_up": d_up, "d_down": d_down}


def attention(fd: Any) -> dict[str, Any]:
    """One projection [3, heads, size], sliced by heads; scores by products; one for the output."""
    size = WIDTH // HEADS
    x, qkv, out = (
        tensor(fd, BATCH, LENGTH, WIDTH),
        tensor(fd, 3 * WIDTH, WIDTH),
        tensor(fd, WIDTH, WIDTH),
    )
    ops = fd.ops
    every = ops.linear(x, qkv)
    parts = []
    for k in range(3):
        begin, end = [0, 0, k * WIDTH], [BATCH, LENGTH, (k + 1) * WIDTH]
        heads = ops.reshape(ops.slice(every, begin, end), [BATCH, LENGTH, HEADS, size])
        parts.append(ops.permute(heads, [0, 2, 1, 3]))
    q, k, v = parts
    scores = ops.matmul(q, ops.permute(k, [0, 1, 3, 2]))
    high = ops.max(scores, dims=[3], keepdim=True)
    weights = ops.exp(ops.sub(scores, high))
    weights = ops.div(weights, ops.sum(weights, dims=[3], keepdim=True))
    seen = ops.reshape(ops.permute(ops.matmul(weights, v), [0, 2, 1, 3]), [BATCH, LENGTH, WIDTH])
    y = ops.add(x, ops.linear(seen, out))
    fd.add_output(y)
    return {"x": x, "qkv": qkv, "out": out, "y": y}


def sharded(define: Any, d: int, **placements: Placement) -> Shardings:
    fusion, named = fusion_of(define)
    mesh = DeviceMesh((d,), ("tp",))
    return propagate(fusion, mesh, {named[n]: {"tp": p} for n, p in placements.items()})


@pytest.mark.parametrize("d", [2, 4])
def test_an_mlp_reduces_once(d: int) -> None:
    found = sharded(mlp, d, up=outer(0, HIDDEN, d), down=outer(1, HIDDEN, d))
    assert kinds(found) == ["all_reduce"]
    assert found.bytes == 2 * BATCH * LENGTH * WIDTH * 8 * (d - 1) // d
    assert is_right(found)


@pytest.mark.parametrize("d", [2, 4])
def test_sequence_parallel_gathers_and_scatters(d: int) -> None:
    along = outer(1, LENGTH, d)
    up, down = outer(0, HIDDEN, d), outer(1, HIDDEN, d)
    found = sharded(mlp, d, x=along, y=along, up=up, down=down)
    assert found.bytes <= 2 * BATCH * LENGTH * WIDTH * 8 * (d - 1) // d
    assert is_right(found)


@pytest.mark.parametrize("d", [2, 4])
def test_the_backward_of_an_mlp_reduces_once(d: int) -> None:
    up, down = outer(0, HIDDEN, d), outer(1, HIDDEN, d)
    found = sharded(mlp_backward, d, up=up, down=down, d_up=up, d_down=down)
    assert kinds(found) == ["all_reduce"]
    assert found.bytes == 2 * BATCH * LENGTH * WIDTH * 8 * (d - 1) // d
    assert is_right(found)


@pytest.mark.parametrize("d", [2, 4])
def test_heads_of_one_projection_need_one_reduction(d: int) -> None:
    heads = Shard(0, WIDTH // d, d)  # of the projection's queries, keys and values each
    found = sharded(attention, d, qkv=heads, out=outer(1, WIDTH, d))
    assert kinds(found) == ["all_reduce"]
    assert is_right(found)
    chunks = sharded(attention, d, qkv=outer(0, 3 * WIDTH, d), out=outer(1, WIDTH, d))
    assert len(kinds(chunks)) > 1
    assert any("no digit of its index" in c.reason for c in chunks.communications)
    assert is_right(chunks)


def test_two_axes() -> None:
    fusion, named = fusion_of(mlp)
    mesh = DeviceMesh((2, 2), ("dp", "tp"))
    placements: dict[TensorView, dict[str, Placement]] = {
        named["x"]: {"dp": outer(0, BATCH, 2)},
        named["up"]: {"tp": outer(0, HIDDEN, 2)},
        named["down"]: {"tp": outer(1, HIDDEN, 2)},
    }
    found = propagate(fusion, mesh, placements)
    assert kinds(found) == ["all_reduce"]
    assert found.bytes == 2 * BATCH * LENGTH * WIDTH * 8 // 2 // 2
    assert is_right(found)


def test_a_sharded_dropout_equals_the_whole() -> None:
    def define(fd: Any) -> dict[str, Any]:
        x = tensor(fd, 16, 8)
        noise = fd.ops.uniform(
            0.0, 1.0, shape=[16, 8], rng_seed=7, rng_offset=0, dtype=DataType.Double
        )
        fd.add_output(fd.ops.where(fd.ops.gt(noise, 0.5), x, 0.0))
        return {"x": x}

    found = sharded(define, 4, x=Shard(0, 2, 4))
    assert kinds(found) == []
    assert is_right(found)
