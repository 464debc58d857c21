"""Updates of windows in a random program: boxes of an input, in even steps, that values or numbers
are written to, and that may overlap. Most inputs are new; others the program reads before. It may
read old elements for results and for what it writes, other parts of the input and of other inputs
that are updated, and new elements afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.generator_program import Program
from thunder_fuser.frontends.thunder.claims.padding import padded
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import TensorView

_Run = tuple[int, int, int]
"""First position, step and count along a dimension."""


def windows_step(p: Program) -> None:
    """Update up to two inputs that hold each element once."""
    for like in p.rng.sample(p.pool, min(len(p.pool), 2)):
        if p.chance(0.8):
            p.tensor(like.sizes, like.dtype, repeats=0)
    targets = [
        t
        for t in p.input_views
        if t.rank and t.numel and all(d.expanded is None for d in t.domain.logical)
    ]
    for target in targets[-2:]:
        if p.chance(0.4):
            _old_elements(p, target)
    for target in targets[-2:]:
        value = target
        for _ in range(p.rng.choice((1, 1, 1, 2, 2, 3))):
            value = _written(p, value, [_run(p, size) for size in target.sizes])
        p.builder.output(value, target)
        for _ in range(p.rng.choice((0, 0, 1))):
            p.builder.output(_flipped(p, value))


def _old_elements(p: Program, target: TensorView) -> None:
    """Something of an input before it is updated: for what is written, for a result, or both."""
    b = p.builder
    made = _flipped(p, target) if p.chance(0.7) else target
    kind = p.rng.choice(("as it is", "turned", "a box", "largest"))
    if kind == "turned":
        by = p.rng.randrange(target.sizes[-1])
        ends = [0] * (target.rank - 1)
        last = [b.slice(made, [*ends, by], target.sizes)]
        last.append(b.slice(made, [0] * target.rank, [*target.sizes[:-1], by]))
        made = p.pooled(b.cat(last, target.rank - 1))
    elif kind == "a box":
        runs = [_run(p, size) for size in target.sizes]
        ends = [start + (count - 1) * step + 1 for start, step, count in runs]
        made = p.pooled(b.slice(made, [run[0] for run in runs], ends, [run[1] for run in runs]))
    elif kind == "largest" and not target.dtype.is_complex:
        made = p.pooled(b.reduce("max", made, [p.rng.randrange(target.rank)], keepdim=True))
    if made is not target and p.chance(0.6):
        b.output(made)


def _flipped(p: Program, x: TensorView) -> TensorView:
    op = "bitwise_not" if x.dtype is DataType.Bool else "neg"
    return p.pooled(p.builder.pointwise(op, x))


def _run(p: Program, size: int) -> _Run:
    if p.chance(0.4):
        return 0, 1, size
    start, step = p.rng.randrange(size), p.rng.choice((1, 1, 1, 2, 3))
    return start, step, p.rng.randint(1, (size - 1 - start) // step + 1)


def _written(p: Program, x: TensorView, box: Sequence[_Run]) -> TensorView:
    """Return `x` with something in a box of it."""
    b, sizes = p.builder, [count for _, _, count in box]
    ends = [start + (count - 1) * step + 1 for start, step, count in box]
    widths = [
        (start, size - end, step - 1)
        for size, end, (start, step, _) in zip(x.sizes, ends, box, strict=True)
    ]
    mask = padded(b, b.full(sizes, True, DataType.Bool), widths, False)
    fitting = [v for v in p.pool if v.dtype is x.dtype and v.sizes == x.sizes]
    if not p.chance(0.2):
        fitting = [v for v in fitting if v not in p.input_views]
    if fitting and p.chance(0.8):
        steps = [step for _, step, _ in box]
        part = b.slice(p.recent(fitting), [start for start, _, _ in box], ends, steps)
        inside = padded(b, part, widths)
    else:
        inside = b.full(x.sizes, p.constant(x.dtype), x.dtype)
    return p.pooled(b.pointwise("where", mask, inside, x))
