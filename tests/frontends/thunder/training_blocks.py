"""Two small blocks of transformers, up to their loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.zoo.rope import turned

BATCH, LENGTH, HEADS, SIZE, HIDDEN, CLASSES = 2, 16, 4, 32, 72, 50


class Llama(nn.Module):
    """RMSNorm, rotary attention, RMSNorm, SwiGLU, with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(SIZE, eps=1e-5) for _ in range(3))
        self.qkv = nn.Linear(SIZE, 3 * SIZE, bias=False)
        self.out = nn.Linear(SIZE, SIZE, bias=False)
        self.gate = nn.Linear(SIZE, HIDDEN, bias=False)
        self.up = nn.Linear(SIZE, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, SIZE, bias=False)
        self.head = nn.Linear(SIZE, CLASSES, bias=False)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        qkv = self.qkv(self.norms[0](x)).view(BATCH, LENGTH, 3, HEADS, SIZE // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(BATCH, LENGTH, SIZE))
        h = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return F.cross_entropy(self.head(self.norms[2](x)).view(-1, CLASSES), target.view(-1))


class Gelu(nn.Module):
    """LayerNorm, attention, LayerNorm, GELU, with biases and residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(SIZE) for _ in range(3))
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)
        self.up = nn.Linear(SIZE, HIDDEN)
        self.down = nn.Linear(HIDDEN, SIZE)
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        qkv = self.qkv(self.norms[0](x)).view(BATCH, LENGTH, 3, HEADS, SIZE // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        seen = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(BATCH, LENGTH, SIZE))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        logits = self.head(self.norms[2](x)).view(-1, CLASSES)
        return F.cross_entropy(logits, target.view(-1), ignore_index=3)


def batch(dtype: torch.dtype, device: torch.device | str) -> list[torch.Tensor]:
    """x, cos, sin, target"""
    angle = torch.randn(LENGTH, SIZE // HEADS, device=device)
    x = torch.randn(BATCH, LENGTH, SIZE, device=device)
    target = torch.randint(0, CLASSES, (BATCH, LENGTH), device=device)
    return [x.to(dtype), angle.cos().to(dtype), angle.sin().to(dtype), target]
