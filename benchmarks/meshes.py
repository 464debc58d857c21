"""What a large model communicates on a mesh, planned from fake tensors.

    python -m benchmarks.meshes [LAYERS]

A Llama of the width of Llama-3-70B, trained with data and tensor parallelism on 64 GPUs: bytes that
each rank holds and sends, by axis and collective, and the seconds that it takes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
