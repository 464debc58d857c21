"""Random definitions whose sizes are open, and computed: each is a program for torch, too.

A program is a list of steps on a pool of tensors. Sizes in it are expressions over the sizes of
tensors, over number inputs and constants, so that one definition is several programs: one for each
set of input sizes, some of which make no sense. `Program.define` writes it down with open sizes;
`Program.run` runs it in torch with numbers, and says by `Mistake` where it means nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_fuser.frontends.definition import DataType, FusionDefinition

Float, Int, Double = DataType.Float, DataType.Int, DataType.Double


class Mistake(Exception):
    """The program means nothing for these sizes."""


class Ambiguous(Exception):
    """A size that happens to be 1 meets another one, where torch broadcasts and a definition may
    refuse; or a size is divided by 0, which has no meaning.
    """


@dataclass
class Expression:
    """A size: an operation of `_ARITHMETIC`, or a leaf: const, dim (tensor, k), number."""

    op: str
    operands: tuple[Any, ...]


def _known(e: Expression) -> int | None:
    """A size that the definition knows whatever the inputs are: no size of a dimension is negative,
    so that the least of one and -3 is -3.
    """
    if e.op == "const":
        return int(e.operands[0])
    if e.op in ("dim", "number"):
        return None
    values = [_known(x) for x in e.operands]
    known = [value for value in values if value is not None]
    if e.op == "min" and known and min(known) <= 0:
        others = [x for x, value in zip(e.operands, values, strict=True) if value is None]
        return min(known) if all(x.op == "dim" for x in others) else None
    return _ARITHMETIC[e.op][2](*known) if len(known) == len(values) else None


def _ceil(fd: FusionDefinition, x: Any, d: int) -> Any:
    quotient = fd.ops.div(fd.ops.cast(x, Double), float(d))
    return fd.ops.cast(fd.ops.ceil(quotient), Int)


def _truncated(x: int, d: int) -> int:
    if d == 0:
        raise Ambiguous
    return abs(x) // abs(d) * (1 if (x < 0) == (d < 0) else -1)


_ARITHMETIC: dict[str, tuple[int, Callable[..., Any], Callable[..., int]]] = {
    "add": (2, lambda fd, x, y: fd.ops.add(x, y), lambda x, y: x + y),
    "sub": (2, lambda fd, x, y: fd.ops.sub(x, y), lambda x, y: x - y),
    "mul": (2, lambda fd, x, y: fd.ops.mul(x, y), lambda x, y: x * y),
    "div": (2, lambda fd, x, y: fd.ops.div(x, y), _truncated),
    "mod": (
        2,
        lambda fd, x, y: fd.ops.mod(x, y),
        lambda x, y: x - y * _truncated(x, y),
    ),
    "neg": (1, lambda fd, x: fd.ops.neg(x), lambda x: -x),
    "abs": (1, lambda fd, x: fd.ops.abs(x), abs),
    "max": (2, lambda fd, x, y: fd.ops.maximum(x, y), max),
    "min": (2, lambda fd, x, y: fd.ops.minimum(x, y), min),
    "half": (1, lambda fd, x: x // 2, lambda x: x // 2),
    "ceil": (1, lambda fd, x: _ceil(fd, x, 3), lambda x: -(-x // 3)),
    "where": (
        4,
        lambda fd, a, b, x, y: fd.ops.where(fd.ops.lt(a, b), x, y),
        lambda a, b, x, y: x if a < b else y,
    ),
    "same": (
        4,
        lambda fd, a, b, x, y: fd.ops.where(fd.ops.eq(a, b), x, y),
        lambda a, b, x, y: x if a == b else y,
    ),
}


@dataclass
class Step:
    """An operation on tensors of the pool (by place), with sizes and constants."""

    op: str
    tensors: tuple[int, ...]
    sizes: list[Any] = field(default_factory=list)
    numbers: tuple[Any, ...] = ()


class Program:
    """One random program."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.ranks = [rng.randint(1, 3) for _ in range(rng.randint(1, 2))]
        self.numbers = rng.randint(0, 1)
        self._pool = list(self.ranks)
        self.steps: list[Step] = []
        for _ in range(rng.randint(2, 6)):
            self._add_step()
        last = len(self._pool) - 1
        self.outputs = sorted({last, rng.randint(len(self.ranks), last)})

    def chooses(self) -> bool:
        """Whether sizes depend on signs and comparisons, which print in several ways."""

        def found(e: Expression) -> bool:
            return e.op in ("where", "same", "abs", "mod", "div") or any(
                found(x) for x in e.operands if isinstance(x, Expression)
            )

        return any(found(e) for step in self.steps for e in step.sizes)

    # ---- choices

    def _add_step(self) -> None:
        rng = self._rng
        k = rng.randrange(len(self._pool))
        rank = self._pool[k]
        steps: list[Callable[[int, int], tuple[Step, int]]] = [self._unary, self._scaled]
        steps += [self._full, self._iota, self._binary]
        if rank:
            steps += 2 * [self._reshape, self._slice, self._pad, self._expand]
            steps += [self._sum, self._cat, self._wide, self._flat, self._split]
        step, made = rng.choice(steps)(k, rank)
        self.steps.append(step)
        self._pool.append(made)

    def _size(self, depth: int = 0) -> Expression:
        rng = self._rng
        if depth > 2 or rng.random() < 0.5:
            leaf = rng.random()
            if leaf < 0.2:
                return Expression("const", (rng.randint(0, 6),))
            if leaf < 0.3 and self.numbers:
                return Expression("number", (0,))
            ranked = [k for k, rank in enumerate(self._pool) if rank]
            if not ranked:
                return Expression("const", (rng.randint(1, 6),))
            k = rng.choice(ranked)
            return Expression("dim", (k, rng.randrange(self._pool[k])))
        op = rng.choice(list(_ARITHMETIC))
        return Expression(op, tuple(self._size(depth + 1) for _ in range(_ARITHMETIC[op][0])))

    def _dims(self, k: int) -> list[Expression]:
        return [Expression("dim", (k, d)) for d in range(self._pool[k])]

    def _unary(self, k: int, rank: int) -> tuple[Step, int]:
        return Step("neg", (k,)), rank

    def _scaled(self, k: int, rank: int) -> tuple[Step, int]:
        return Step("scale", (k,), [self._size()]), rank

    def _binary(self, k: int, rank: int) -> tuple[Step, int]:
        like = [j for j, other in enumerate(self._pool) if other == rank]
        return Step("add", (k, self._rng.choice(like))), rank

    def _full(self, k: int, rank: int) -> tuple[Step, int]:
        sizes = [self._size() for _ in range(self._rng.randint(1, 2))]
        return Step("full", (), sizes), len(sizes)

    def _iota(self, k: int, rank: int) -> tuple[Step, int]:
        return Step("iota", (), [self._size()]), 1

    def _reshape(self, k: int, rank: int) -> tuple[Step, int]:
        """A shape that may have another number of elements."""
        dims = self._dims(k)
        self._rng.shuffle(dims)
        if self._rng.random() < 0.3:
            dims[0] = self._size()
        if self._rng.random() < 0.3:
            dims.insert(self._rng.randint(0, rank), Expression("const", (1,)))
        return Step("reshape", (k,), dims), len(dims)

    def _flat(self, k: int, rank: int) -> tuple[Step, int]:
        return Step("reshape", (k,), [Expression("const", (-1,))]), 1

    def _split(self, k: int, rank: int) -> tuple[Step, int]:
        """One dimension as several groups, where it divides."""
        dims, d, n = self._dims(k), self._rng.randrange(rank), self._rng.choice([2, 3])
        dims[d : d + 1] = [
            Expression("div", (dims[d], Expression("const", (n,)))),
            Expression("const", (n,)),
        ]
        return Step("reshape", (k,), dims), rank + 1

    def _slice(self, k: int, rank: int) -> tuple[Step, int]:
        rng = self._rng
        starts: list[Any] = [Expression("const", (rng.choice([0, 0, 1, 3]),)) for _ in range(rank)]
        ends: list[Any] = self._dims(k)
        d = rng.randrange(rank)
        ends[d] = rng.choice([self._size(), Expression("const", (rng.choice([2, 4, -1]),))])
        if rng.random() < 0.2:
            starts[d] = self._size()
        strides = tuple(rng.choice([1, 1, 2, 3]) for _ in range(rank))
        return Step("slice", (k,), [*starts, *ends], strides), rank

    def _pad(self, k: int, rank: int) -> tuple[Step, int]:
        return Step("pad", (k,), [self._size(), self._size()]), rank

    def _expand(self, k: int, rank: int) -> tuple[Step, int]:
        """A new dimension in front, which shows that many elements; the others keep their sizes, or
        are said to have some.
        """
        dims = self._dims(k)
        if self._rng.random() < 0.3:
            dims[self._rng.randrange(rank)] = self._size()
        return Step("expand", (k,), [self._size(), *dims]), rank + 1

    def _wide(self, k: int, rank: int) -> tuple[Step, int]:
        shape = [*self._dims(k), self._size()]
        return Step("broadcast_in_dim", (k,), shape, tuple(range(rank))), rank + 1

    def _sum(self, k: int, rank: int) -> tuple[Step, int]:
        return Step("sum", (k,), [], (self._rng.randrange(rank),)), rank - 1

    def _cat(self, k: int, rank: int) -> tuple[Step, int]:
        like = [j for j, other in enumerate(self._pool) if other == rank]
        return Step("cat", (k, self._rng.choice(like)), [], (self._rng.randrange(rank),)), rank

    # ---- as a definition

    def define(self) -> FusionDefinition:
        """With every size of the inputs open."""
        with FusionDefinition() as fd:
            numbers = [fd.define_scalar(None, Int) for _ in range(self.numbers)]
            pool = [fd.define_tensor([-1] * rank, True, Float) for rank in self.ranks]

            def size(e: Expression) -> Any:
                match e.op, e.operands:
                    case "const", (value,):
                        return value
                    case "number", (k,):
                        return numbers[k]
                    case "dim", (k, d):
                        return pool[k].size(d)
                _, build, _ = _ARITHMETIC[e.op]
                found = [size(x) for x in e.operands]
                # Arithmetic on constants alone is the user's, in Python.
                known = all(isinstance(x, int) for x in found)
                return build(fd, *([fd.define_scalar(x, Int) for x in found] if known else found))

            for step in self.steps:
                made = _defined(
                    fd, step, [pool[k] for k in step.tensors], list(map(size, step.sizes))
                )
                pool.append(made)
            for k in self.outputs:
                fd.add_output(fd.ops.mul(pool[k], 2.0))
        return fd

    # ---- in torch

    def inputs(self, seed: int) -> list[Any]:
        """Small numbers as floats, so that sums are exact."""
        rng = random.Random(seed)
        usual = rng.choice([[2, 3, 4, 6], [4, 6], [6, 8, 12], [0, 2, 5], [7]])
        shapes = [[rng.choice(usual) for _ in range(rank)] for rank in self.ranks]
        generator = torch.Generator().manual_seed(seed)
        tensors = [torch.randint(-4, 5, s, generator=generator).float() for s in shapes]
        return [*(rng.choice(usual) for _ in range(self.numbers)), *tensors]

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """What it means for these inputs; Mistake if that is nothing."""
        numbers, pool = inputs[: self.numbers], list(inputs[self.numbers :])

        def size(e: Expression) -> int:
            match e.op, e.operands:
                case "const", (value,):
                    return int(value)
                case "number", (k,):
                    return int(numbers[k])
                case "dim", (k, d):
                    return int(pool[k].shape[d])
            return _ARITHMETIC[e.op][2](*map(size, e.operands))

        for step in self.steps:
            sizes = [size(e) for e in step.sizes]
            constant = [_known(e) is not None for e in step.sizes]
            negative = [
                n == -1 or (known and n < 0) for known, n in zip(constant, sizes, strict=True)
            ]
            if step.op not in ("slice", "scale") and sizes != [-1] and any(negative):
                # Where it is known in the definition, -1 has a meaning of its own in a shape.
                raise Ambiguous
            pool.append(_run(step, [pool[k] for k in step.tensors], sizes, constant))
        return [pool[k] * 2.0 for k in self.outputs]


def _defined(fd: FusionDefinition, step: Step, tensors: list[Any], sizes: list[Any]) -> Any:
    ops = fd.ops
    match step.op:
        case "neg":
            return ops.neg(*tensors)
        case "scale":
            return ops.mul(tensors[0], *sizes)
        case "add":
            return ops.add(*tensors)
        case "full":
            return ops.full(sizes, 3.0, Float)
        case "iota":
            return ops.cast(ops.iota(*sizes), Float)
        case "reshape":
            return ops.reshape(tensors[0], sizes)
        case "slice":
            half = len(sizes) // 2
            return ops.slice(tensors[0], sizes[:half], sizes[half:], list(step.numbers))
        case "pad":
            return ops.pad(tensors[0], sizes, 5.0)
        case "expand":
            flags = [True, *([False] * (len(sizes) - 1))]
            return ops.expand(ops.broadcast(tensors[0], flags), sizes)
        case "broadcast_in_dim":
            return ops.broadcast_in_dim(tensors[0], sizes, list(step.numbers))
        case "sum":
            return ops.sum(tensors[0], list(step.numbers))
        case _:
            return ops.cat(tensors, *step.numbers)


def _run(
    step: Step, tensors: list[torch.Tensor], sizes: list[int], constant: list[bool]
) -> torch.Tensor:
    match step.op:
        case "neg":
            return -tensors[0]
        case "scale":
            return tensors[0] * sizes[0]
        case "add":
            return _aligned(*tensors, but=None, join=torch.add)
        case "cat":
            (d,) = step.numbers
            return _aligned(*tensors, but=d, join=lambda x, y: torch.cat([x, y], d))
        case "full":
            return torch.full(_sizes(sizes), 3.0)
        case "iota":
            return torch.arange(_sizes(sizes)[0]).float()
        case "reshape":
            return _reshaped(tensors[0], sizes, constant)
        case "slice":
            return _sliced(tensors[0], sizes, constant, step.numbers)
        case "pad":
            if tensors[0].shape[-1] + sum(sizes) < 0:
                raise Mistake
            return _padded(tensors[0], *sizes)
        case "sum":
            return tensors[0].sum(*step.numbers)
        case _:
            first = step.op == "expand"
            (new,) = _sizes(sizes[:1] if first else sizes[-1:])
            stated = sizes[1:] if first else sizes[:-1]
            shape = list(tensors[0].shape)
            if stated != shape:
                # One element is expanded, as in torch, where it is known to be one.
                repeats = all(n in (1, m) for n, m in zip(shape, stated, strict=True))
                raise Ambiguous if repeats else Mistake
            x = tensors[0].unsqueeze(0 if first else -1)
            return x.expand([new, *stated] if first else [*stated, new])


def _sizes(sizes: list[int]) -> list[int]:
    if min(sizes) < 0:
        raise Mistake
    return sizes


def _aligned(
    x: torch.Tensor, y: torch.Tensor, but: int | None, join: Callable[..., torch.Tensor]
) -> torch.Tensor:
    for d, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)):
        if m != n and d != but:
            raise Ambiguous if 1 in (m, n) and but is None else Mistake
    return join(x, y)


def _reshaped(x: torch.Tensor, sizes: list[int], constant: list[bool]) -> torch.Tensor:
    if sizes == [-1] and constant == [True]:
        return x.reshape(-1)
    total = 1
    for n in _sizes(sizes):
        total *= n
    if total != x.numel():
        raise Mistake
    return x.reshape(sizes)


def _sliced(
    x: torch.Tensor, sizes: list[int], constant: list[bool], strides: Sequence[int]
) -> torch.Tensor:
    rank = x.dim()
    for d in range(rank):
        start, end, n = sizes[d], sizes[rank + d], x.shape[d]
        if end < 0 and constant[rank + d]:
            end += n
        start, end = min(start, n), min(end, n)
        if start < 0 or end < 0:
            raise Mistake
        if start > end:
            # Nothing, as in nvFuser, where the sizes are known when the kernel runs.
            raise Ambiguous
        x = x.narrow(d, start, end - start)
    return x[tuple(slice(None, None, s) for s in strides)]


def _padded(x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    n = x.shape[-1]
    out = torch.full([*x.shape[:-1], n + left + right], 5.0)
    first, last = max(0, -left), min(n, n + right)
    if first < last:
        out[..., first + left : last + left] = x[..., first:last]
    return out
