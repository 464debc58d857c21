"""`python -m thunder_fuser demo`: rotary embeddings, fused, run, and checked against float64.

The program is that of NVIDIA/Fuser issue 2577: from the joint QKV projection of a transformer block
to rotated queries, keys and values, with grouped-query attention.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import torch

BATCH, LENGTH = 2, 1024
HEADS, GROUPS, HEAD_SIZE, ROTATED = 16, 4, 32, 8
Program = Callable[..., Sequence[torch.Tensor]]
SETTINGS = (HEADS, GROUPS, HEAD_SIZE, ROTATED)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, count: int) -> torch.Tensor:
    """Rotate the first `count` elements of each head, paired by halves; keep the others."""
    turned, kept = x[..., :count], x[..., count:]
    first, second = turned[..., : count // 2], turned[..., count // 2 :]
    partner = torch.cat((-second, first), dim=-1)
    return torch.cat((turned * cos + partner * sin, kept), dim=-1)


def rope(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    groups: int,
    head_size: int,
    rotated: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values [batch, heads, length, head_size] of x [batch, length,
    features].

    `x` holds, for each group, its queries, then one key and one value that they share; `cos` and
    `sin` are [length, rotated].
    """
    batch, length, _ = x.shape
    shared = heads // groups
    grouped = x.view(batch, length, groups, shared + 2, head_size).permute(0, 2, 3, 1, 4)
    queries, key, value = grouped.split((shared, 1, 1), dim=2)
    everyone = (batch, groups, shared, length, head_size)
    q, k, v = (
        t.reshape(batch, -1, length, head_size)
        for t in (queries, key.expand(everyone), value.expand(everyone))
    )
    return rotate(q, cos, sin, rotated), rotate(k, cos, sin, rotated), v


def main() -> int:
    """Run forward and backward on the GPU, else on the CPU; return 0 if all results are right."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    features = (HEADS + 2 * GROUPS) * HEAD_SIZE
    sizes = ((BATCH, LENGTH, features), (LENGTH, ROTATED), (LENGTH, ROTATED))
    inputs = [torch.randn(size, device=device).to(torch.bfloat16) for size in sizes]
    print(f"rotary embeddings of x {list(sizes[0])}, bfloat16, on {device}")
    with warnings.catch_warnings():
        # Thunder warns of absent optional packages, torch of deprecated functions Thunder uses.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"thunder\.")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        right = [_forward(inputs), _backward(inputs)]
    return 0 if all(right) else 1


def _forward(inputs: Sequence[torch.Tensor]) -> bool:
    """Run and check the program without gradients: one fusion."""
    import thunder

    import thunder_fuser

    compiled = thunder.jit(rope, executors=[thunder_fuser.executor])
    start = time.perf_counter()
    ours = compiled(*inputs, *SETTINGS)
    seconds = time.perf_counter() - start
    program: Program = rope
    eager = program(*inputs, *SETTINGS)
    exact = program(*(x.double() for x in inputs), *SETTINGS)
    print(f"\nforward, traced and compiled in {seconds:.1f} s")
    right = [_compare(*row) for row in zip(("q", "k", "v"), ours, eager, exact, strict=True)]
    for report in thunder_fuser.fusions(compiled):
        print(report)
    return all(right)


def _backward(inputs: Sequence[torch.Tensor]) -> bool:
    """Run and check forward and backward: fusions before and after the loss."""
    import thunder

    import thunder_fuser
    from thunder_fuser.segment.plan import counted

    compiled = thunder.jit(rope, executors=[thunder_fuser.executor])
    start = time.perf_counter()
    ours = _gradients(compiled, inputs)
    seconds = time.perf_counter() - start
    eager = _gradients(rope, inputs)
    exact = _gradients(rope, [x.double() for x in inputs])
    print(f"\nforward and backward, traced and compiled in {seconds:.1f} s")
    names = ("gradient of x", "gradient of cos", "gradient of sin")
    right = [_compare(*row) for row in zip(names, ours, eager, exact, strict=True)]
    for report in thunder_fuser.fusions(compiled):
        plan = report.plan
        print(f"{report.name}: {counted(plan.kernels, 'kernel')}, {plan.bytes:,} B moved")
        for refusal in report.refusals:
            if refusal.code == "fallback":
                print(f"  in torch {refusal}")
    for refusal, count in thunder_fuser.refusals(compiled).items():
        print(f"left to torch ({count}): {refusal}")
    return all(right)


def _gradients(function: Program, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves, *SETTINGS)
    gradients: Sequence[torch.Tensor] = torch.autograd.grad(outputs, leaves, outputs)
    return gradients


def _compare(name: str, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """True if our error against float64 is at most 1.1 times that of eager torch."""
    size = exact.abs().max()
    error, reference = (float((t.double() - exact).abs().max() / size) for t in (ours, eager))
    right = error <= 1.1 * reference
    verdict = "right" if right else "WRONG"
    print(f"  {name}: {verdict}, off float64 by {error:.2%} (eager torch by {reference:.2%})")
    return right
