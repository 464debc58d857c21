"""Views between reductions and their readers: shapes of one iteration space are one kernel."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import thunder_fuser
from tests.support.batch import Batch, executable
from tests.support.building import op
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.lower.rows.row_space import iteration_space
from thunder_fuser.segment.plan import SegmentedFusion

Float = DataType.Float


def split_sizes(rng: random.Random, count: int) -> list[int]:
    """Some sizes whose product is `count`."""
    sizes = [count]
    for _ in range(rng.randint(0, 3)):
        k = rng.randrange(len(sizes))
        factors = [f for f in range(2, sizes[k]) if sizes[k] % f == 0]
        if factors:
            f = rng.choice(factors)
            sizes[k : k + 1] = [f, sizes[k] // f]
    if rng.random() < 0.3:
        sizes.insert(rng.randint(0, len(sizes)), 1)
    return sizes


class Program:
    """The same random program for our builder and for torch: a norm of some rows, seen in other
    shapes, beside further inputs there.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rows, self.columns = rng.choice([6, 24, 60]), rng.choice([8, 30, 64, 1000])
        self.sizes = [*split_sizes(rng, self.rows), *split_sizes(rng, self.columns)]
        kept = next(
            k for k in range(len(self.sizes)) if math.prod(self.sizes[: k + 1]) == self.rows
        )
        self.dims = list(range(kept + 1, len(self.sizes)))
        self.steps: list[tuple[str, list[int]]] = []
        shape = list(self.sizes)
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.5:
                shape = split_sizes(rng, self.rows * self.columns)
                self.steps.append(("reshape", list(shape)))
            else:
                order = rng.sample(range(len(shape)), len(shape))
                shape = [shape[k] for k in order]
                self.steps.append(("permute", order))
        self.shape = shape
        self.keeps_row_sums = rng.random() < 0.5

    def fusion(self) -> Fusion:
        b = FusionBuilder()
        x, other = b.tensor(self.sizes, Float), b.tensor(self.shape, Float)
        total = b.reduce("sum", x, self.dims, keepdim=True)
        y = op(b, "mul", x, b.expand(total, self.sizes))
        for name, argument in self.steps:
            y = b.reshape(y, argument) if name == "reshape" else b.permute(y, argument)
        b.output(op(b, "add", y, other))
        if self.keeps_row_sums:
            b.output(b.reshape(op(b, "neg", total), [self.rows]))
        return b.build()

    @property
    def is_turned(self) -> bool:
        """Whether neighbours of a row are not neighbours in the result."""
        places = self._seen(torch.arange(self.rows * self.columns).reshape(self.sizes)).flatten()
        order = torch.argsort(places)[:4]
        return bool((order != order[0] + torch.arange(4)).any())

    def _seen(self, y: torch.Tensor) -> torch.Tensor:
        for name, argument in self.steps:
            y = y.reshape(argument) if name == "reshape" else y.permute(argument)
        return y

    def expected(self, x: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
        total = x.sum(self.dims, keepdim=True)
        found = [self._seen(x * total) + other]
        return [*found, -total.reshape(self.rows)] if self.keeps_row_sums else found


def test_a_norm_that_is_read_in_any_shape_is_one_kernel(device: torch.device) -> None:
    """Reshapes and permutations behind a reduction need no kernel of their own, unless neighbours
    would write far apart.
    """
    batch = Batch(device, H200 if device.type == "cpu" else None)
    planned, turned = [], 0
    for seed in range(60):
        program = Program(seed)
        x, other = (torch.randn(s, device=device) for s in (program.sizes, program.shape))
        compiled = executable(CompiledFusion(program.fusion()), [x, other], batch, device)
        plan = compiled.plan
        assert plan.kernels == 1 + program.is_turned, f"seed {seed}: {plan}"
        assert plan.bytes == plan.bytes_ideal or program.is_turned
        turned += program.is_turned
        planned.append((program, [x, other], compiled))
    assert 10 < turned < 50
    for program, inputs, compiled in planned:
        wanted = program.expected(*(t.double() for t in inputs))
        for found, right in zip(compiled(inputs), wanted, strict=True):
            torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-4)


def test_reductions_of_one_iteration_space_in_two_shapes(device: torch.device) -> None:
    """Sums along rows that one sees as [4, 6] and another as [24], and one over all of them."""
    b = FusionBuilder()
    x = b.tensor([4, 6, 50], Float)
    flat = b.reshape(x, [24, 50])
    first = b.reduce("sum", x, [2])
    scaled = op(
        b, "mul", flat, b.expand(b.broadcast(b.reshape(first, [24]), [False, True]), [24, 50])
    )
    b.output(b.reduce("max", scaled, [1]))
    b.output(b.reduce("sum", op(b, "mul", scaled, scaled), [0]))
    x = torch.randn(4, 6, 50, device=device)
    compiled = executable(CompiledFusion(b.build()), [x], Batch(device, None), device)
    assert compiled.plan.kernels == 1
    rows = x.double().reshape(24, 50)
    right = rows * rows.sum(1, keepdim=True)
    most, total = compiled([x])
    torch.testing.assert_close(most.double(), right.amax(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(total.double(), (right * right).sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("sizes", "folded", "space"),
    [
        ((2, 3, 5), (2,), ((False, 6), (True, 5))),
        ((6, 1, 5), (2,), ((False, 6), (True, 5))),
        ((6, 1, 5), (1, 2), ((False, 6), (True, 5))),
        ((2, 3, 5), (1,), ((False, 2), (True, 3), (False, 5))),
        ((1, 1), (0,), ()),
    ],
)
def test_iteration_spaces_are_equal_up_to_merges(
    sizes: Sequence[int], folded: Sequence[int], space: object
) -> None:
    assert iteration_space(sizes, folded) == space


def test_what_is_read_elsewhere_than_at_its_rows_is_another_kernel(b: FusionBuilder) -> None:
    """Each column would read the sum of another row."""
    x = b.tensor([30, 30], Float)
    total = b.reduce("sum", x, [1])
    b.output(op(b, "mul", x, b.expand(b.broadcast(total, [True, False]), [30, 30])))
    assert CompiledFusion(b.build()).plan().kernels == 2


# ---- through Thunder


def plans(f: Any, *inputs: tuple[Sequence[int], torch.dtype]) -> list[SegmentedFusion]:
    """The plans of a function's forward and backward, for a GPU that need not exist."""
    with FakeTensorMode():
        made = [
            torch.empty(s, dtype=d, device="cuda", requires_grad=d.is_floating_point)
            for s, d in inputs
        ]
    compiled = thunder.jit(f, executors=[thunder_fuser.executor])
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(*made)
    traces = [entry.computation_traces[-1], entry.backward_traces[-1]]
    return [f.plan for trace in traces for f in thunder_fuser.fusions_of_trace(trace)]


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (wide * scale).to(x.dtype) * weight


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As Hugging Face's models write it."""
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1))


def norm_of_heads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = rms_norm(x.reshape(-1, x.shape[-1]), weight)
    return normed.reshape(*x.shape[:2], 32, -1).transpose(1, 2).contiguous()


def embedded(index: torch.Tensor, table: torch.Tensor, weight: torch.Tensor) -> Any:
    h = F.embedding(index, table)
    return h, rms_norm(h, weight)


BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("f", "inputs"),
    [
        (cross_entropy, [((2, 4096, 128256), BF16), ((2, 4096), torch.int64)]),
        (norm_of_heads, [((2, 4096, 4096), BF16), ((4096,), BF16)]),
        (embedded, [((2, 4096), torch.int64), ((32000, 4096), BF16), ((4096,), BF16)]),
        (
            lambda x: torch.softmax(x.view(-1, 2048), -1).reshape(8, 1024, 2048),
            [((8, 1024, 2048), BF16)],
        ),
    ],
)
def test_models_that_flatten_their_rows(f: Any, inputs: Any) -> None:
    forward, *backward = plans(f, *inputs)
    assert forward.kernels == 1
    assert forward.bytes == forward.bytes_ideal
    for plan in backward:
        assert plan.bytes <= 1.001 * plan.bytes_ideal


def test_cross_entropy_of_flattened_logits_is_right() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 7, 321, generator=generator).requires_grad_()
    labels = torch.randint(0, 321, (2, 7), generator=generator)
    labels[1, 3] = -100
    wide = logits.detach().double().requires_grad_()
    with thunder_fuser.options(strict=True):
        loss = thunder.jit(cross_entropy, executors=[thunder_fuser.executor])(logits, labels)
        loss.backward()
    right = F.cross_entropy(wide.view(-1, 321), labels.view(-1))
    right.backward()
    assert logits.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(loss.double(), right, rtol=1e-6, atol=0)
    torch.testing.assert_close(logits.grad.double(), wide.grad, rtol=1e-4, atol=1e-6)
