"""The halves of LitGPT's block, grouped-query attention and a gated MLP: forward and backward in
one definition each, and the same in torch.

A half is `x + f(RMSNorm(x))`. Gradients are of its input and of its weights, as autograd has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.sharding import DeviceMesh, Shardings, outer, propagate
from thunder_fuser.sharding.mesh import Placement

BATCH, LENGTH, HEADS, GROUPS, SIZE = 2, 4, 8, 4, 4
WIDTH, HIDDEN = HEADS * SIZE, 48
SHARED = HEADS // GROUPS
"""Query heads of one key head."""
EPS = 1e-6

Named = dict[str, Any]
Wanted = Mapping[str, Mapping[str, Placement]]
"""For tensors by name, placements along axes of a mesh."""


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a block.

    define   writes its forward and backward, and gives tensors by name
    run      the forward in torch
    weights  shapes of what is learned, by name
    columns  weights whose rows are spread over devices; `rows`: those whose columns are
    given    shapes of what is given and not learned
    """

    define: Callable[[Any], Named]
    run: Callable[..., torch.Tensor]
    weights: Mapping[str, tuple[int, ...]]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    given: Mapping[str, tuple[int, ...]]

    def inputs(self) -> dict[str, torch.Tensor]:
        """Numbers for all inputs, by name."""
        generator = torch.Generator().manual_seed(0)
        activations = {"x": (BATCH, LENGTH, WIDTH), "dy": (BATCH, LENGTH, WIDTH)}
        shapes = {**activations, **self.weights, **self.given}
        return {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) / 4
            for name, shape in shapes.items()
        }

    def expected(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What torch makes of them: the result and all gradients."""
        learned = {n: inputs[n].clone().requires_grad_() for n in ("x", *self.weights)}
        y = self.run(**learned, **{n: inputs[n] for n in self.given})
        gradients = torch.autograd.grad(y, list(learned.values()), inputs["dy"])
        return {"y": y, **{f"d_{n}": g for n, g in zip(learned, gradients, strict=True)}}


def _tensors(fd: Any, shapes: Mapping[str, tuple[int, ...]]) -> Named:
    return {
        name: fd.define_tensor(shape=list(shape), contiguity=True, dtype=DataType.Double)
        for name, shape in shapes.items()
    }


def _norm(ops: Any, x: Any, weight: Any) -> tuple[Any, Any, Any]:
    """RMSNorm: the result, what is scaled by the weight, and the reciprocal of the root."""
    mean = ops.mul(ops.sum(ops.mul(x, x), dims=[2], keepdim=True), 1 / WIDTH)
    scale = ops.rsqrt(ops.add(mean, EPS))
    unit = ops.mul(x, scale)
    return ops.mul(unit, weight), unit, scale


def _norm_backward(ops: Any, d: Any, unit: Any, scale: Any, weight: Any) -> tuple[Any, Any]:
    """Gradients of the input and of the weight."""
    d_unit = ops.mul(d, weight)
    along = ops.mul(ops.sum(ops.mul(d_unit, unit), dims=[2], keepdim=True), 1 / WIDTH)
    return (
        ops.mul(ops.sub(d_unit, ops.mul(unit, along)), scale),
        ops.sum(ops.mul(d, unit), dims=[0, 1]),
    )


def _of_weight(ops: Any, d: Any, x: Any) -> Any:
    """The gradient of the weight of a linear layer from those of its result and its input."""
    n, k = d.val.sizes[-1], x.val.sizes[-1]
    rows = BATCH * LENGTH
    return ops.matmul(ops.permute(ops.reshape(d, [rows, n]), [1, 0]), ops.reshape(x, [rows, k]))


def _end(fd: Any, named: Named, results: Named) -> Named:
    for tensor in results.values():
        fd.add_output(tensor)
    return {**named, **results}


# ---- a gated MLP


def _mlp(fd: Any) -> Named:
    t = _tensors(fd, {"x": (BATCH, LENGTH, WIDTH), "dy": (BATCH, LENGTH, WIDTH), **MLP_WEIGHTS})
    ops = fd.ops
    x, dy = t["x"], t["dy"]
    normed, unit, scale = _norm(ops, x, t["norm"])
    gate, up = ops.linear(normed, t["fc_1"]), ops.linear(normed, t["fc_2"])
    sigmoid = ops.sigmoid(gate)
    swish = ops.mul(gate, sigmoid)
    inner = ops.mul(swish, up)
    y = ops.add(x, ops.linear(inner, t["proj"]))
    d_inner = ops.matmul(dy, t["proj"])
    d_up = ops.mul(d_inner, swish)
    slope = ops.mul(sigmoid, ops.add(1.0, ops.mul(gate, ops.sub(1.0, sigmoid))))
    d_gate = ops.mul(ops.mul(d_inner, up), slope)
    d_normed = ops.add(ops.matmul(d_gate, t["fc_1"]), ops.matmul(d_up, t["fc_2"]))
    d_x, d_norm = _norm_backward(ops, d_normed, unit, scale, t["norm"])
    return _end(
        fd,
        t,
        {
            "y": y,
            "d_x": ops.add(dy, d_x),
            "d_norm": d_norm,
            "d_fc_1": _of_weight(ops, d_gate, normed),
            "d_fc_2": _of_weight(ops, d_up, normed),
            "d_proj": _of_weight(ops, dy, inner),
        },
    )


def _run_mlp(
    x: torch.Tensor, norm: torch.Tensor, fc_1: torch.Tensor, fc_2: torch.Tensor, proj: torch.Tensor
) -> torch.Tensor:
    h = rms_norm(x, (WIDTH,), norm, EPS)
    return x + linear(silu(linear(h, fc_1)) * linear(h, fc_2), proj)


MLP_WEIGHTS = {
    "norm": (WIDTH,),
    "fc_1": (HIDDEN, WIDTH),
    "fc_2": (HIDDEN, WIDTH),
    "proj": (WIDTH, HIDDEN),
}
MLP = Half(_mlp, _run_mlp, MLP_WEIGHTS, ("fc_1", "fc_2"), ("proj",), {})


# ---- attention: heads of one group lie together in the projection, as LitGPT has them


def _rotated(ops: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding of [batch, group, head, position, size]."""
    return ops.add(ops.mul(x, cos), ops.mul(_turned(ops, x), sin))


def _unrotated(ops: Any, d: Any, cos: Any, sin: Any) -> Any:
    """The gradient of what was rotated."""
    return ops.sub(ops.mul(d, cos), _turned(ops, ops.mul(d, sin)))


def _turned(ops: Any, x: Any) -> Any:
    low = ops.slice(x, [0] * 5, [*x.val.sizes[:4], SIZE // 2])
    high = ops.slice(x, [0] * 4 + [SIZE // 2], list(x.val.sizes))
    return ops.cat([ops.neg(high), low], dim=4)


def _attention(fd: Any) -> Named:
    shapes = {"x": (BATCH, LENGTH, WIDTH), "dy": (BATCH, LENGTH, WIDTH)}
    t = _tensors(fd, {**shapes, **ATTENTION_WEIGHTS, **ROPE})
    ops = fd.ops
    x, dy, cos, sin = t["x"], t["dy"], t["cos"], t["sin"]
    normed, unit, scale = _norm(ops, x, t["norm"])
    every = ops.reshape(ops.linear(normed, t["qkv"]), [BATCH, LENGTH, GROUPS, SHARED + 2, SIZE])
    every = ops.permute(every, [0, 2, 3, 1, 4])

    def heads(begin: int, end: int) -> Any:
        return ops.slice(every, [0, 0, begin, 0, 0], [BATCH, GROUPS, end, LENGTH, SIZE])

    q = _rotated(ops, heads(0, SHARED), cos, sin)
    k = _rotated(ops, heads(SHARED, SHARED + 1), cos, sin)
    v = heads(SHARED + 1, SHARED + 2)
    shape = [BATCH, GROUPS, SHARED, LENGTH, SIZE]
    k, v = (ops.broadcast_in_dim(z, shape, [0, 1, 2, 3, 4]) for z in (k, v))
    scores = ops.mul(ops.matmul(q, ops.permute(k, [0, 1, 2, 4, 3])), SIZE**-0.5)
    row, column = (
        ops.broadcast_in_dim(ops.iota(LENGTH, 0, 1, DataType.Int), [LENGTH, LENGTH], [dim])
        for dim in (0, 1)
    )
    scores = ops.where(ops.ge(row, column), scores, -1e30)
    weights = ops.exp(ops.sub(scores, ops.max(scores, dims=[4], keepdim=True)))
    weights = ops.div(weights, ops.sum(weights, dims=[4], keepdim=True))
    seen = ops.reshape(ops.permute(ops.matmul(weights, v), [0, 3, 1, 2, 4]), [BATCH, LENGTH, WIDTH])
    y = ops.add(x, ops.linear(seen, t["proj"]))

    d_seen = ops.reshape(ops.matmul(dy, t["proj"]), [BATCH, LENGTH, GROUPS, SHARED, SIZE])
    d_seen = ops.permute(d_seen, [0, 2, 3, 1, 4])
    d_weights = ops.matmul(d_seen, ops.permute(v, [0, 1, 2, 4, 3]))
    along = ops.sum(ops.mul(d_weights, weights), dims=[4], keepdim=True)
    d_scores = ops.mul(ops.mul(weights, ops.sub(d_weights, along)), SIZE**-0.5)
    back = ops.permute(d_scores, [0, 1, 2, 4, 3])
    d_q = _unrotated(ops, ops.matmul(d_scores, k), cos, sin)
    d_k = ops.sum(ops.matmul(back, q), dims=[2], keepdim=True)
    d_v = ops.sum(ops.matmul(ops.permute(weights, [0, 1, 2, 4, 3]), d_seen), dims=[2], keepdim=True)
    d_every = ops.cat([d_q, _unrotated(ops, d_k, cos, sin), d_v], dim=2)
    d_every = ops.reshape(
        ops.permute(d_every, [0, 3, 1, 2, 4]), [BATCH, LENGTH, (HEADS + 2 * GROUPS) * SIZE]
    )
    d_x, d_norm = _norm_backward(ops, ops.matmul(d_every, t["qkv"]), unit, scale, t["norm"])
    return _end(
        fd,
        t,
        {
            "y": y,
            "d_x": ops.add(dy, d_x),
            "d_norm": d_norm,
            "d_qkv": _of_weight(ops, d_every, normed),
            "d_proj": _of_weight(ops, dy, seen),
        },
    )


def _run_attention(
    x: torch.Tensor,
    norm: torch.Tensor,
    qkv: torch.Tensor,
    proj: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    every = linear(rms_norm(x, (WIDTH,), norm, EPS), qkv)
    every = every.view(BATCH, LENGTH, GROUPS, SHARED + 2, SIZE).permute(0, 2, 3, 1, 4)
    q, k, v = every.split((SHARED, 1, 1), dim=2)

    def rotated(z: torch.Tensor) -> torch.Tensor:
        low, high = z.chunk(2, dim=-1)
        return z * cos + torch.cat([-high, low], -1) * sin

    q, k = rotated(q), rotated(k)
    q, k, v = (
        z.expand(BATCH, GROUPS, SHARED, LENGTH, SIZE).reshape(BATCH, HEADS, LENGTH, SIZE)
        for z in (q, k, v)
    )
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + linear(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH), proj)


ATTENTION_WEIGHTS = {
    "norm": (WIDTH,),
    "qkv": ((HEADS + 2 * GROUPS) * SIZE, WIDTH),
    "proj": (WIDTH, WIDTH),
}
ROPE = {"cos": (LENGTH, SIZE), "sin": (LENGTH, SIZE)}
ATTENTION = Half(_attention, _run_attention, ATTENTION_WEIGHTS, ("qkv",), ("proj",), ROPE)

HALVES = {"attention": ATTENTION, "mlp": MLP}


# ---- on a mesh


def sharded(
    half: Half, mesh: DeviceMesh, *, sequence: bool, batch: bool = False
) -> tuple[Shardings, Named]:
    """Tensor parallel along the axis "tp": weights by columns, then by rows, as Megatron has them;
    with `sequence`, what is between halves is sharded by position; with `batch`, by rows of the
    batch along the axis "dp". And the tensors by name.
    """
    with FusionDefinition() as fd:
        named = half.define(fd)
    d = mesh.shape[mesh.axis("tp")]
    wanted: dict[str, dict[str, Placement]] = {}
    for name in ("x", "dy", "y", "d_x"):
        wanted[name] = {"tp": outer(1, LENGTH, d)} if sequence else {}
        if batch:
            wanted[name]["dp"] = outer(0, BATCH, mesh.shape[mesh.axis("dp")])
    for name, shape in half.weights.items():
        placed: dict[str, Placement] = {}
        if name in half.columns:
            placed = {"tp": outer(0, shape[0], d)}
        elif name in half.rows:
            placed = {"tp": outer(1, shape[1], d)}
        wanted[name] = wanted[f"d_{name}"] = placed
    for name in half.given:
        wanted[name] = {}
    values: dict[TensorView, Mapping[str, Placement]] = {
        named[name].val: placed for name, placed in wanted.items()
    }
    return propagate(fd.compiled.fusion, mesh, values), named


def is_right(
    half: Half,
    shardings: Shardings,
    named: Named,
    run: Callable[[list[torch.Tensor]], list[torch.Tensor]],
) -> None:
    """What a run makes of whole inputs is what torch makes of them on one device."""
    names = {tensor.val: name for name, tensor in named.items()}
    inputs = half.inputs()
    expected = half.expected(inputs)
    found = run([inputs[names[t]] for t in shardings.fusion.tensor_inputs])
    for tensor, result in zip(shardings.fusion.outputs, found, strict=True):
        torch.testing.assert_close(result, expected[names[tensor]], rtol=1e-11, atol=1e-12)
