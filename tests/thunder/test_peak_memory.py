"""What fusing holds in memory, beside Thunder with torch alone, and whether estimates are true."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from tests.thunder.memory import halves
from tests.thunder.training_blocks import rotated

BF16 = torch.bfloat16
BATCH, LENGTH, SIZE, HEADS, HIDDEN = 2, 2048, 1024, 16, 2816


class LlamaBlock(nn.Module):
    """As in Llama, with RMSNorm, rotary attention and SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(SIZE, eps=1e-5) for _ in range(2))
        self.qkv = nn.Linear(SIZE, 3 * SIZE, bias=False)
        self.out = nn.Linear(SIZE, SIZE, bias=False)
        self.gate = nn.Linear(SIZE, HIDDEN, bias=False)
        self.up = nn.Linear(SIZE, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, SIZE, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).view(BATCH, LENGTH, 3, HEADS, SIZE // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(BATCH, LENGTH, SIZE))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def llama() -> tuple[nn.Module, list[Tensor]]:
    try:
        torch.set_default_dtype(BF16)
        with FakeTensorMode(), torch.device("cuda"):
            x = torch.empty(BATCH, LENGTH, SIZE, requires_grad=True)
            return LlamaBlock(), [x, *(torch.empty(LENGTH, SIZE // HEADS) for _ in range(2))]
    finally:
        torch.set_default_dtype(torch.float32)


# ---- a transformer


def test_a_block_of_llama_takes_no_more_than_torch() -> None:
    block, inputs = llama()
    ours = halves(block, *inputs)
    theirs = halves(block, *inputs, torch_alone=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.peak < other.peak
    forward, backward = ours
    assert (len(forward.fusions), len(backward.fusions)) == (6, 7)
    assert forward.kernels <= 6
    assert backward.kernels <= 7
    assert forward.bytes_over_ideal <= 1.05
    assert backward.bytes_over_ideal <= 1.10


def test_attention_weights_are_saved_once() -> None:
    """Matrix products read the softmax under another name than its own gradient."""
    block, inputs = llama()
    forward, _ = halves(block, *inputs)
    saved = forward.trace.bound_symbols[-1].args[1][0]
    squares = [p.name for p in saved if tuple(p.shape) == (BATCH, HEADS, LENGTH, LENGTH)]
    assert len(squares) == 1
