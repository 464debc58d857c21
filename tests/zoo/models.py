"""Whole models of the kinds that people train, as torch modules whose sizes are arguments.

Each says a published model's arithmetic the way its users write it: LitGPT's Llama, GPT-2, BERT
with a mask, a vision transformer, a mixture of experts whose router picks two, a diffusion
transformer, a U-Net with group norm, a residual network with batch norm. A model's forward gives
its loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model is made of; `side` is of images, in pixels, `classes` also says how many words
    there are.
    """

    layers: int
    width: int
    heads: int
    length: int
    hidden: int
    classes: int
    batch: int = 2
    groups: int = 2
    experts: int = 4
    side: int = 32
    patch: int = 8
    dropout: float = 0.0

    @property
    def head(self) -> int:
        return self.width // self.heads


def _attend(q: Tensor, k: Tensor, v: Tensor, **options: bool | Tensor | None) -> Tensor:
    """[batch, heads, time, size] -> [batch, time, heads * size]"""
    y = F.scaled_dot_product_attention(q, k, v, **options)
    batch, heads, time, size = y.shape
    return y.transpose(1, 2).reshape(batch, time, heads * size)


class SelfAttention(nn.Module):
    """One projection to queries, keys and values, with biases."""

    def __init__(self, s: Sizes, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = s.heads, causal
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            t.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(x).split(width, dim=2)
        )
        return self.out(_attend(q, k, v, attn_mask=mask, is_causal=self.causal))


class Mlp(nn.Module):
    def __init__(self, s: Sizes, approximate: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(s.width, s.hidden), nn.Linear(s.hidden, s.width)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(x), approximate=self.approximate)
        return self.down(h)


# ---- Llama, as LitGPT has it


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float() if x.element_size() < 4 else x
        x = x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-5)
        return (x * self.weight).to(dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.size(-1) // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (turned * sin)).to(x.dtype)


class GroupedAttention(nn.Module):
    """Several queries to a key; rotary positions."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        self.qkv = nn.Linear(s.width, (s.heads + 2 * s.groups) * s.head, bias=False)
        self.proj = nn.Linear(s.width, s.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s, (batch, time, _) = self.s, x.shape
        parts = self.qkv(x).split((s.heads * s.head, *(s.groups * s.head,) * 2), dim=-1)
        q, k, v = (t.view(batch, time, -1, s.head).transpose(1, 2) for t in parts)
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        k, v = (t.repeat_interleave(s.heads // s.groups, dim=1) for t in (k, v))
        return self.proj(_attend(q, k, v, is_causal=True))


class SwiGLU(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(s.width, s.hidden, bias=False)
        self.up = nn.Linear(s.width, s.hidden, bias=False)
        self.down = nn.Linear(s.hidden, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each token by two of the experts, in the shares that a router gives; every expert sees every
    token, and its share is 0 where it was not picked.
    """

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.router = nn.Linear(s.width, s.experts, bias=False)
        inward, outward = (s.experts, s.width, s.hidden), (s.experts, s.hidden, s.width)
        scales = [1 / math.sqrt(shape[1]) for shape in (inward, outward)]
        self.gate, self.up = (nn.Parameter(torch.randn(inward) * scales[0]) for _ in range(2))
        self.down = nn.Parameter(torch.randn(outward) * scales[1])

    def forward(self, x: Tensor) -> Tensor:
        experts, tokens = self.gate.shape[0], x.reshape(-1, x.shape[-1])
        logits = self.router(tokens)
        wide = logits.float() if logits.element_size() < 4 else logits
        shares, picked = torch.topk(F.softmax(wide, dim=1), 2, dim=-1)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        hits = F.one_hot(picked, num_classes=experts)
        shares = (hits * shares.unsqueeze(-1)).sum(1).to(x.dtype)
        every = tokens.unsqueeze(0).expand(experts, -1, -1)
        h = F.silu(torch.bmm(every, self.gate)) * torch.bmm(every, self.up)
        y = torch.bmm(h, self.down) * shares.t().unsqueeze(-1)
        return y.sum(0).view(x.shape)


class LlamaBlock(nn.Module):
    def __init__(self, s: Sizes, mlp: Callable[[Sizes], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(s.width), RMSNorm(s.width)
        self.attn, self.mlp = GroupedAttention(s), mlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, s: Sizes, mlp: Callable[[Sizes], nn.Module] = SwiGLU) -> None:
        super().__init__()
        self.wte = nn.Embedding(s.classes, s.width)
        self.blocks = nn.ModuleList(LlamaBlock(s, mlp) for _ in range(s.layers))
        self.norm, self.head = RMSNorm(s.width), nn.Linear(s.width, s.classes, bias=False)
        turns = 1 / 10_000 ** (torch.arange(0, s.head, 2) / s.head)
        angles = (torch.arange(s.length)[:, None] * turns[None, :]).repeat(1, 2)
        self.register_buffer("cos", torch.cos(angles))
        self.register_buffer("sin", torch.sin(angles))

    def forward(self, words: Tensor, target: Tensor) -> Tensor:
        x = self.wte(words)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))


def mixtral(s: Sizes) -> nn.Module:
    return Llama(s, Experts)


# ---- GPT-2


class PreNormBlock(nn.Module):
    """LayerNorm before attention and before the two layers with a GELU."""

    def __init__(self, s: Sizes, causal: bool, approximate: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.attn, self.mlp = SelfAttention(s, causal), Mlp(s, approximate)
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT2(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(s.classes, s.width), nn.Embedding(s.length, s.width)
        self.dropout = nn.Dropout(s.dropout)
        self.blocks = nn.ModuleList(PreNormBlock(s, True, "tanh") for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width)

    def forward(self, words: Tensor, target: Tensor) -> Tensor:
        places = torch.arange(0, words.size(1), dtype=torch.long, device=words.device)
        x = self.dropout(self.wte(words) + self.wpe(places))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.wte.weight)
        following = F.pad(target, (0, 1), value=-100)[..., 1:].contiguous()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), following.view(-1))


# ---- BERT


class PostNormBlock(nn.Module):
    """LayerNorm of each sum, after dropout."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(s.width, eps=1e-12)
        self.norm2 = nn.LayerNorm(s.width, eps=1e-12)
        self.attn, self.mlp = SelfAttention(s), Mlp(s, "none")
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(self.dropout(self.attn(x, mask)) + x)
        return self.norm2(self.dropout(self.mlp(x)) + x)


class Bert(nn.Module):
    """With a mask of words that are not padding, and a head that guesses words."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(s.classes, s.width), nn.Embedding(s.length, s.width)
        self.kinds, self.norm = nn.Embedding(2, s.width), nn.LayerNorm(s.width, eps=1e-12)
        self.dropout = nn.Dropout(s.dropout)
        self.blocks = nn.ModuleList(PostNormBlock(s) for _ in range(s.layers))
        self.dense, self.head_norm = nn.Linear(s.width, s.width), nn.LayerNorm(s.width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(s.classes))

    def forward(self, words: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        places = torch.arange(words.size(1), device=words.device).unsqueeze(0)
        x = self.words(words) + self.kinds(torch.zeros_like(words)) + self.places(places)
        x = self.dropout(self.norm(x))
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        hidden = hidden.expand(-1, 1, words.size(1), -1)
        for block in self.blocks:
            x = block(x, hidden)
        x = self.head_norm(F.gelu(self.dense(x)))
        logits = F.linear(x, self.words.weight, self.bias)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1), ignore_index=0)


# ---- images


class ViT(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, s.width, s.patch, s.patch)
        count = (s.side // s.patch) ** 2
        self.first = nn.Parameter(torch.randn(1, 1, s.width))
        self.places = nn.Parameter(torch.randn(1, count + 1, s.width) * 0.02)
        self.dropout = nn.Dropout(s.dropout)
        self.blocks = nn.ModuleList(PreNormBlock(s, False, "none") for _ in range(s.layers))
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.classes)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.dropout(x + self.places)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), target)


def _waves(time: Tensor, width: int) -> Tensor:
    """Cosines and sines of a time, [batch, width]."""
    half = width // 2
    turns = torch.exp(-math.log(10_000) * torch.arange(half, device=time.device) / half)
    angles = time[:, None].float() * turns[None]
    return torch.cat((torch.cos(angles), torch.sin(angles)), dim=-1)


class DiTBlock(nn.Module):
    """LayerNorms that the time shifts and scales, branches that it gates."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(s.width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(s.width, elementwise_affine=False, eps=1e-6)
        self.attn, self.mlp = SelfAttention(s), Mlp(s, "tanh")
        self.modulation = nn.Linear(s.width, 6 * s.width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        parts = self.modulation(F.silu(time)).chunk(6, dim=1)
        shift1, scale1, gate1, shift2, scale2, gate2 = (p.unsqueeze(1) for p in parts)
        x = x + gate1 * self.attn(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.width = s.width
        self.time = nn.Sequential(
            nn.Linear(s.width, s.width), nn.SiLU(), nn.Linear(s.width, s.width)
        )
        self.blocks = nn.ModuleList(DiTBlock(s) for _ in range(s.layers))

    def forward(self, x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        when = self.time(_waves(time, self.width).to(x.dtype))
        for block in self.blocks:
            x = block(x, when)
        return F.mse_loss(x, noise)


class UNetBlock(nn.Module):
    """Group norm, SiLU, convolution, twice, with the time between them."""

    def __init__(self, inward: int, outward: int, s: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(s.groups, inward), nn.GroupNorm(s.groups, outward)
        self.conv1 = nn.Conv2d(inward, outward, 3, padding=1)
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1)
        self.time = nn.Linear(s.width, outward)
        self.skip = nn.Conv2d(inward, outward, 1) if inward != outward else nn.Identity()
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return self.skip(x) + h


class ImageAttention(nn.Module):
    """Attention between the points of an image."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.norm, self.attn = nn.GroupNorm(s.groups, s.width), SelfAttention(s)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attn(h).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Down by a convolution, attention, up by doubled points, beside what came down."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.width, width = s.width, s.width
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = UNetBlock(width, width, s)
        self.halve = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle, self.attn = UNetBlock(width, width, s), ImageAttention(s)
        self.widen = nn.Conv2d(width, width, 3, padding=1)
        self.up = UNetBlock(2 * width, width, s)
        self.norm, self.last = nn.GroupNorm(s.groups, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        when = _waves(time, self.width).to(image.dtype)
        high = self.down(self.first(image), when)
        low = self.attn(self.middle(self.halve(high), when))
        low = self.widen(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        x = self.up(torch.cat((high, low), dim=1), when)
        return F.mse_loss(self.last(F.silu(self.norm(x))), noise)


class Bottleneck(nn.Module):
    def __init__(self, inward: int, inner: int, outward: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inward, inner, 1, bias=False)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(inner, outward, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(inner)
        self.norm3 = nn.BatchNorm2d(outward)
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inward != outward:
            conv = nn.Conv2d(inward, outward, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(outward))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        h = F.relu(self.norm2(self.conv2(h)))
        return F.relu(self.norm3(self.conv3(h)) + self.skip(x))


class ResNet(nn.Module):
    """A stem, `layers` stages of two blocks, an average over what is left of the image."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, s.width, 7, 2, 3, bias=False)
        self.norm, self.pool = nn.BatchNorm2d(s.width), nn.MaxPool2d(3, 2, 1)
        blocks, inward = [], s.width
        for k in range(s.layers):
            inner = s.width * 2**k
            blocks += [Bottleneck(inward, inner, 4 * inner, 2 if k else 1)]
            blocks += [Bottleneck(4 * inner, inner, 4 * inner, 1)]
            inward = 4 * inner
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inward, s.classes)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.blocks(self.pool(F.relu(self.norm(self.conv(image)))))
        return F.cross_entropy(self.head(x.mean((2, 3))), target)


# ---- what they are called with

Batch = Callable[[Sizes, torch.dtype, str], list[Tensor]]


def _words(s: Sizes, device: str) -> Tensor:
    return torch.randint(1, s.classes, (s.batch, s.length), device=device)


def _image(s: Sizes, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(s.batch, 3, s.side, s.side, dtype=dtype, device=device)


def _time(s: Sizes, device: str) -> Tensor:
    return torch.randint(0, 1000, (s.batch,), device=device)


@contextmanager
def in_float64() -> Iterator[None]:
    """Within it a model of float64 parameters computes the truth: `x.float()` gives float64, too,
    and so do quotients of integers, from which positions and times become waves.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(Tensor, "float", Tensor.double):
            yield
    finally:
        torch.set_default_dtype(before)


def _text(s: Sizes, dtype: torch.dtype, device: str) -> list[Tensor]:
    return [_words(s, device), _words(s, device)]


def _masked(s: Sizes, dtype: torch.dtype, device: str) -> list[Tensor]:
    mask = torch.ones(s.batch, s.length, dtype=torch.int64, device=device)
    mask[-1, s.length // 2 :] = 0
    return [_words(s, device), mask, _words(s, device)]


def _pictures(s: Sizes, dtype: torch.dtype, device: str) -> list[Tensor]:
    return [_image(s, dtype, device), torch.randint(0, s.classes, (s.batch,), device=device)]


def _noisy(s: Sizes, dtype: torch.dtype, device: str) -> list[Tensor]:
    shape = (s.batch, s.length, s.width)
    x, noise = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    return [x, _time(s, device), noise]


def _noisy_pictures(s: Sizes, dtype: torch.dtype, device: str) -> list[Tensor]:
    return [_image(s, dtype, device), _time(s, device), _image(s, dtype, device)]


@dataclass(frozen=True, slots=True)
class Model:
    """small: for a run on the host; full: for a plan."""

    name: str
    make: Callable[[Sizes], nn.Module]
    batch: Batch
    small: Sizes
    full: Sizes

    def __str__(self) -> str:
        return self.name


_SMALL = Sizes(2, 32, 4, 12, 72, 50)
_TEXT = Sizes(12, 768, 12, 1024, 3072, 50_304, batch=4, dropout=0.1)
_VISION = Sizes(12, 768, 12, 197, 3072, 1000, batch=32, side=224, patch=16)

MODELS: Sequence[Model] = (
    Model(
        "Llama", Llama, _text, _SMALL, Sizes(12, 1024, 16, 2048, 2816, 32_000, groups=4, batch=2)
    ),
    Model("GPT-2", GPT2, _text, _SMALL, _TEXT),
    Model("BERT", Bert, _masked, _SMALL, Sizes(12, 768, 12, 512, 3072, 30_522, 16, dropout=0.1)),
    Model("ViT", ViT, _pictures, _SMALL, _VISION),
    Model(
        "Mixtral-like",
        mixtral,
        _text,
        _SMALL,
        Sizes(12, 1024, 16, 1024, 1792, 32_000, groups=4, experts=8),
    ),
    Model("DiT", DiT, _noisy, _SMALL, Sizes(12, 1152, 16, 256, 4608, 0, batch=32)),
    Model(
        "U-Net",
        UNet,
        _noisy_pictures,
        Sizes(1, 16, 2, 0, 0, 0, side=8),
        Sizes(1, 320, 8, 0, 0, 0, batch=4, groups=32, side=64, dropout=0.1),
    ),
    Model(
        "ResNet",
        ResNet,
        _pictures,
        Sizes(2, 8, 0, 0, 0, 10, batch=4),
        Sizes(4, 64, 0, 0, 0, 1000, batch=64, side=224),
    ),
)
