"""Reductions, scans and norms with all their arguments, on the edges of values and sizes.

A program is a function of its seed: calls that do not hang on each other, of tensors that all have
one shape and one kind of values. Torch refuses some of the calls; those are kept apart.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import thunder
import torch
from torch import Tensor

from tests.fuzz.gpus import gpu_of
from tests.fuzz.kernels import Device, devices
from tests.fuzz.numbers import random_numbers, special_floats
from tests.fuzz.observe import run
from tests.fuzz.program import Argument, Line, Program
from tests.support.inputs import laid_out
from thunder_fuser import executor

CALLS = 10
"""Calls of one program."""
FLOATS = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
OTHERS = (
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128),
)
SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (), (1,), (5,), (33,), (1025,), (4100,), (70_000,)),
    *((1, 1), (3, 1), (1, 7), (2, 5), (4, 33), (2, 1025), (600, 3), (130, 17)),
    *((2, 3, 4), (4, 1, 3), (3, 4, 65), (2, 4, 5, 3), (2, 2, 1, 3, 2)),
    *((0,), (3, 0), (0, 3), (2, 0, 3), (0, 0)),
)

# ---- calls

_ORDERS = ("0", "1", "2", "2.0", "3.5", "0.5", "-1", "inf", "-inf")
_CORRECTIONS = ("0", "1", "0.5")
_DTYPES = ("torch.float64", "torch.float32", "torch.bfloat16", "torch.int64", "torch.int32")
_REDUCTIONS = ("none", "mean", "sum")
_SPREADS = (("var", ""), ("std", ""), ("var_mean", "[0]"), ("std_mean", "[0]"))

TEXTS: tuple[tuple[str, float], ...] = (
    *((f"torch.{name}({{x}}{{dims}})", 1.0) for name in ("sum", "mean", "amax", "amin")),
    *((f"torch.{name}({{x}}{{dims}})", 0.8) for name in ("any", "all", "nansum")),
    ("torch.nanmean({x}.detach(){dims})", 0.8),
    *((f"torch.{name}({{x}}{{dims}}, dtype={{dtype}})", 0.4) for name in ("sum", "mean", "nansum")),
    *((f"torch.{name}({{x}}{{dim}})", 1.0) for name in ("max", "min", "argmax", "argmin")),
    # Which factors meet first, and whether they overflow before they meet a 0, a kernel chooses.
    ("torch.prod({x}.clamp(-1, 1){dim})", 1.0),
    ("torch.prod({x}.clamp(-1, 1){dim}, dtype={dtype})", 0.4),
    ("torch.count_nonzero({x}{only})", 0.6),
    ("torch.aminmax({x}{named})", 0.6),
    *(
        (f"torch.{name}({{x}}{{dims}}, correction={{correction}}){rest}", 0.8)
        for name, rest in _SPREADS
    ),
    *((f"torch.{name}({{x}}{{dims}}){rest}", 0.4) for name, rest in _SPREADS),
    # Torch moves a mean along beside a variance: NaN behind an infinity, no sum that overflows.
    *(
        (f"torch.{name}({{x}}.clamp(-99, 99){{dims}}, correction={{correction}})", 0.8)
        for name in ("var_mean", "std_mean")
    ),
    # Torch's gradient has another formula where no degree of freedom is left and no dim is given.
    *(
        (f"torch.{name}({{x}}.detach(){{dims}}, correction={{all}}){rest}", 0.3)
        for name, rest in _SPREADS
    ),
    *((f"torch.{name}({{x}}, unbiased={{bool}})", 0.2) for name in ("var", "std")),
    ("torch.logsumexp({x}{needed})", 1.0),
    *((f"torch.{name}({{x}}, {{one}})", 0.8) for name in ("softmax", "log_softmax", "cumsum")),
    *((f"torch.{name}({{x}}, {{one}}, dtype={{dtype}})", 0.3) for name in ("softmax", "cumsum")),
    ("F.softmin({x}, {one})", 0.4),
    ("torch.cumprod({x}.clamp(-1, 1), {one})", 0.5),
    ("torch.linalg.vector_norm({x}, {order}{dims})", 2.0),
    ("torch.norm({x}, {order}{dims})", 0.8),
    ("torch.norm({x}{named_dims})", 0.4),
    ("torch.linalg.norm({x}{named_dims})", 0.4),
    ("F.normalize({x}, {order}, {one})", 0.8),
    # x * scale + shift, as torch's CPU kernels have it, is inf - inf near the largest number.
    ("F.layer_norm({x}.clamp(-1e4, 1e4), {x}.shape[-{k}:])", 1.0),
    ("F.layer_norm({x}.clamp(-1e4, 1e4), {x}.shape[-{k}:], eps={eps})", 0.5),
    ("F.rms_norm({x}, {x}.shape[-{k}:])", 1.0),
    ("F.rms_norm({x}, {x}.shape[-{k}:], eps={eps})", 0.5),
    ("F.group_norm({x}.clamp(-1e4, 1e4), {k})", 0.6),
    ("F.batch_norm({x}.clamp(-1e4, 1e4), None, None, training=True)", 0.6),
    ("F.instance_norm({x}.clamp(-1e4, 1e4))", 0.4),
    ("F.cross_entropy({x}, {classes}, reduction={reduction})", 0.5),
    ("F.cross_entropy({x}, {classes}, ignore_index=1, reduction={reduction})", 0.5),
    ("F.cross_entropy({x}, {classes}, {weights}, reduction={reduction})", 0.4),
    (
        "F.cross_entropy({x}, {classes}, {weights}, ignore_index=0, label_smoothing=0.25, "
        "reduction={reduction})",
        0.5,
    ),
    ("F.cross_entropy({x}, {x}.detach(), label_smoothing=0.25, reduction={reduction})", 0.3),
    ("F.nll_loss({x}, {classes}, ignore_index=1, reduction={reduction})", 0.4),
)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where arguments are drawn: rank and sizes of the operand."""

    rng: random.Random
    shape: Sequence[int]

    def one(self) -> str:
        """A dimension; now and then one that there is not."""
        rank = max(len(self.shape), 1)
        if self.rng.random() < 0.03:
            return str(self.rng.choice((rank, -rank - 1)))
        return str(self.rng.randrange(-rank, rank))

    def several(self) -> str:
        """One or more, or none; now and then one twice."""
        rank, drawn = len(self.shape), self.rng.random()
        if drawn < 0.3 or not rank:
            return self.rng.choice((self.one(), f"({self.one()},)"))
        if drawn < 0.36:
            return self.rng.choice(("()", "(0, 0)", f"(0, {-rank})", "None", "[]"))
        chosen = self.rng.sample(range(rank), self.rng.randint(1, rank))
        return str(tuple(d - rank if self.rng.random() < 0.4 else d for d in chosen))

    def kept(self) -> str:
        return self.rng.choice(("", "", ", keepdim=True", ", keepdim=False"))


def _after(text: str, kept: str) -> str:
    return f", {text}{kept}"


_PLACES: dict[str, Callable[[_Choice], str]] = {
    "dims": lambda c: "" if c.rng.random() < 0.2 else _after(c.several(), c.kept()),
    "dim": lambda c: "" if c.rng.random() < 0.2 else _after(c.one(), c.kept()),
    "only": lambda c: "" if c.rng.random() < 0.2 else _after(c.several(), ""),
    "named": lambda c: "" if c.rng.random() < 0.3 else _after(f"dim={c.one()}", c.kept()),
    "named_dims": lambda c: "" if c.rng.random() < 0.3 else _after(f"dim={c.several()}", c.kept()),
    "needed": lambda c: _after(c.several(), c.kept()),
    "one": _Choice.one,
    "order": lambda c: c.rng.choice(_ORDERS),
    "correction": lambda c: c.rng.choice(_CORRECTIONS),
    "all": lambda c: str(max(c.shape, default=1) + c.rng.choice((0, 2))),
    "dtype": lambda c: c.rng.choice(_DTYPES),
    "bool": lambda c: c.rng.choice(("True", "False")),
    "k": lambda c: str(c.rng.randint(1, 2)),
    "eps": lambda c: c.rng.choice(("0.0", "1e-12", "0.5")),
    "reduction": lambda c: repr(c.rng.choice(_REDUCTIONS)),
}
_PLACE = re.compile(r"\{(\w+)\}")

# ---- values


def _of_one(value: float) -> Callable[[random.Random, int], list[float]]:
    return lambda rng, n: [value] * n


def _scattered(values: Sequence[float]) -> Callable[[random.Random, int], list[float]]:
    """Ordinary numbers, many of them equal, and some of `values` between."""

    def drawn(rng: random.Random, n: int) -> list[float]:
        numbers = [rng.choice((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)) for _ in range(n)]
        for _ in range(min(n, rng.randint(1, 4))):
            numbers[rng.randrange(n)] = rng.choice(values)
        return numbers

    return drawn


def _values(rng: random.Random, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    count = math.prod(shape)
    if not dtype.is_floating_point or rng.random() < 0.25:
        return random_numbers(rng, shape, dtype)
    info = torch.finfo(dtype)
    kinds = (
        _of_one(rng.choice((0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, info.max))),
        _of_one(rng.choice((info.tiny, info.smallest_normal / 4, -info.max / 2, 0.1))),
        _scattered((math.inf,)),
        _scattered((math.inf, -math.inf)),
        _scattered((math.nan,)),
        _scattered((info.max, -info.max, info.max / 3)),
        _scattered((info.tiny, info.smallest_normal / 4, -0.0)),
        _scattered(special_floats(dtype)),
        lambda rng, n: [rng.choice((0.0, -0.0, 1.0)) for _ in range(n)],
        lambda rng, n: [1.0 + rng.random() for _ in range(n)],
    )
    numbers = rng.choice(kinds)(rng, count)
    return torch.tensor(numbers, dtype=torch.float64).to(dtype).reshape(tuple(shape))


def _layouts(rng: random.Random, values: Tensor) -> tuple[Tensor, ...]:
    """Dense, and in another way: one value for a whole dimension, too."""
    dense = values.contiguous()
    if values.dim() and values.numel() and rng.random() < 0.25:
        dim = rng.randrange(values.dim())
        return dense, values.narrow(dim, 0, 1).clone().expand(values.shape)
    return dense, laid_out(rng, values)[0]


# ---- programs


def program_of_folds(seed: int) -> Program:
    """Calls that torch takes, each with a tensor of its own where there are gradients."""
    return _made(seed)[0]


def device_of_folds(seed: int) -> Device:
    """The host, or a GPU with little of this and of that."""
    return gpu_of(seed) if seed % 2 else devices()[0]


def missing_errors(seed: int) -> list[Program]:
    """The calls of the same seed that torch refuses, each as a program, where ours returns
    something and Thunder alone does not.
    """
    return [p for p in _made(seed)[1] if not _raises(p, [executor]) and _raises(p, [])]


def _raises(program: Program, executors: Sequence[Any]) -> bool:
    jitted = thunder.jit(program.function(), executors=executors)
    return run(program, jitted, 0).error is not None


def _made(seed: int) -> tuple[Program, list[Program]]:
    rng = random.Random(f"folds {seed}")
    shape = rng.choice(SHAPES)
    gradients = rng.random() < 0.4
    dtype = rng.choice(FLOATS if gradients or rng.random() < 0.65 else OTHERS)
    beside = _classes(rng, shape, dtype)
    texts, weights = zip(*TEXTS, strict=True)
    arguments, lines, refused = [*beside], list[Line](), list[Program]()
    for k in range(2 * CALLS):
        if len(lines) >= CALLS:
            break
        if k == 0 or gradients:
            layouts = _layouts(rng, _values(rng, shape, dtype))
            x = Argument(f"a{k}", layouts, gradients)
        row = rng.choices(texts, weights)[0]
        if "classes" in row and 0 in shape:
            continue  # none that a class could be
        line = Line(f"x{k} = {_filled(rng, row, shape, x.name)}", row, f"x{k}")
        program = Program(seed, (x, *beside), (line,), (f"x{k}",))
        found = _tried(program)
        if found is None:
            refused.append(program)
            continue
        lines.append(line)
        if all(a.name != x.name for a in arguments):
            arguments.append(x)
        is_float = isinstance(found, Tensor) and found.is_floating_point()
        # x * scale + shift, as torch's CPU kernels have it, loses the sign of a zero.
        if is_float and "_norm(" not in row.removeprefix("torch.") and rng.random() < 0.3:
            sign = f"torch.signbit(x{k}) & (x{k} == 0)"
            lines.append(Line(f"x{k + 100} = {sign}", "sign", f"x{k + 100}"))
    names = tuple(line.makes for line in lines if line.makes)
    whole = Program(seed, tuple(arguments), tuple(lines), names)
    return whole.trimmed(whole.lines, names), refused


def _filled(rng: random.Random, row: str, shape: Sequence[int], name: str) -> str:
    choice = _Choice(rng, shape)
    named = {"x": name, "classes": "a100", "weights": "a101"}
    return _PLACE.sub(lambda m: named.get(m[1]) or _PLACES[m[1]](choice), row)


def _tried(program: Program) -> object:
    """What torch gives; None if it gives nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return program.function()(*program.inputs(0))[0]
        except Exception:
            return None


def _classes(rng: random.Random, shape: Sequence[int], dtype: torch.dtype) -> list[Argument]:
    """Classes for a loss of that shape, in one layout, and their weights."""
    axis = min(len(shape) - 1, 1)
    count = shape[axis] if shape else 1
    where = [n for k, n in enumerate(shape) if k != axis]
    classes = [rng.randrange(max(count, 1)) for _ in range(math.prod(where))]
    of_classes = torch.tensor(classes, dtype=torch.int64).reshape(where)
    weights = torch.tensor([0.5 + k % 3 for k in range(count)], dtype=torch.float64)
    of_dtype = weights.to(dtype)
    return [Argument("a100", (of_classes,)), Argument("a101", (of_dtype,))]
