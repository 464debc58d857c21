"""What a large model communicates on a mesh, planned from fake tensors.

    python -m benchmarks.meshes [LAYERS]

A Llama of the width of Llama-3-70B, trained with data and tensor parallelism on 64 GPUs: bytes that
each rank holds and sends, by axis and collective, and the seconds that it takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import thunder
import torch
import torch.nn.functional as F
from thunder.core.trace import TraceCtx
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import thunder_fuser
from benchmarks.table import Column, Table
from thunder_fuser.sharding import DeviceMesh
from thunder_fuser.sharding.plan import MeshPlan

MESH = DeviceMesh((8, 8), ("dp", "tp"))
BATCH, LENGTH = 8, 4096
WIDTH, HIDDEN, HEADS, GROUPS, WORDS = 8192, 28672, 64, 8, 128256
PLACED = {
    "words": {"dp": 0},
    "t_wte_weight": {"tp": 0},
    "*qkv_weight": {"tp": 0},
    "*gate_weight": {"tp": 0},
    "*up_weight": {"tp": 0},
    "*proj_weight": {"tp": 1},
    "*down_weight": {"tp": 1},
    "t_head_weight": {"tp": 0},
}
_COLUMNS = (
    Column("part", "part"),
    Column("axis", "axis"),
    Column("collective", "collective"),
    Column("count", "count"),
    Column("MB a rank", "bytes", 1e-6, 1),
    Column("link", "link"),
    Column("ms", "seconds", 1e3, 2),
)
_NOTE = (
    "What each of 64 H200 sends in a training step of a Llama with the shapes of Llama-3-70B, 8 "
    "sequences of 4,096 words in bf16, data parallel between servers and tensor parallel within. "
    "Milliseconds are one collective after the other, by data sheets."
)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5)
        return (wide * self.weight).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.size(-1) // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (turned * sin)).to(x.dtype)


class Block(nn.Module):
    """Grouped queries of one projection, and a gated MLP, as LitGPT has them."""

    def __init__(self, width: int, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.size, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attention(self.norm_1(x), cos, sin)
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        each = self.heads // self.groups
        parts = self.qkv(x).view(batch, time, self.groups, each + 2, self.size)
        parts = parts.permute(0, 2, 3, 1, 4)
        q, k, v = parts.split((each, 1, 1), dim=2)
        shape = batch, self.groups, each, time, self.size
        k, v = (t.expand(shape).reshape(batch, -1, time, self.size) for t in (k, v))
        q = q.reshape(batch, -1, time, self.size)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class Llama(nn.Module):
    def __init__(
        self, layers: int, width: int, hidden: int, heads: int, groups: int, words: int
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, hidden, heads, groups) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.wte(words)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def traces(layers: int) -> Sequence[TraceCtx]:
    """Final traces of the model, forward and backward, from tensors without memory."""
    default = torch.get_default_dtype()
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Llama(layers, WIDTH, HIDDEN, HEADS, GROUPS, WORDS)
            turns = [torch.empty(LENGTH, WIDTH // HEADS) for _ in range(2)]
        finally:
            torch.set_default_dtype(default)
        words = torch.empty(BATCH, LENGTH, dtype=torch.int64)
    compiled = thunder.jit(model, executors=[thunder_fuser.executor])
    data = thunder.compile_data(compiled)
    entry, _, _ = data.get_computation_and_inputs(words, *turns)
    return entry.computation_traces[-1], entry.backward_traces[-1]


def table(plans: Sequence[MeshPlan]) -> Table:
    """A row for each axis and collective of each part."""
    rows: list[dict[str, str | float]] = [
        {
            "part": plan.name,
            "axis": v.axis,
            "collective": v.kind,
            "count": v.count,
            "bytes": v.bytes,
            "link": v.link,
            "seconds": v.seconds,
        }
        for plan in plans
        for v in plan.volumes
    ]
    return Table("A large model on a mesh", _NOTE, _COLUMNS, tuple(rows))


def main(layers: int = 32) -> None:
    """Print the table, and how long the plans took."""
    made = traces(layers)
    start = time.process_time()
    plans = thunder_fuser.mesh_plans(made, MESH, PLACED)
    planned = time.process_time() - start
    print(table(plans).markdown())
    for plan in plans:
        print(str(plan).split("\n  tp: ")[0])
    print(f"{layers} layers planned in {planned:.1f} CPU seconds")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
