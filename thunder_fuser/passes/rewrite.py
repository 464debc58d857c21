"""Rewrite: a `Rebuild` for passes that replace one value by another.

Equal elements are not enough for that. A result is memory that the caller may write into: `x * 1`
is a new tensor and `x` is not, and two equal results are two tensors. So a value whose memory a
result shows is only replaced by one whose memory is neither an input's nor another result's, and in
which elements are repeated no more often: a copy of an expanded tensor has each of them once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Literal

from thunder_fuser.analysis.aliases import memory_behind_results
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Expand, Transform, static
from thunder_fuser.ir.fusion import Expr, Fusion, Scalar, TensorView, Val, shows_memory
from thunder_fuser.ir.rebuild import Rebuild, renumbered

Precision = Literal["strict", "fast"]
"""strict: results are bitwise unchanged, except for the order of reductions. fast: roundings of
intermediate values may be skipped, too.
"""


Pass = Callable[[Fusion, Precision], Fusion]


def where(holds: Callable[[Expr], bool]) -> Callable[[Pass], Pass]:
    """Decorator: skip a pass for fusions without an expression for which `holds` is true. Most
    passes would rebuild the whole program to find out.
    """

    def restricted(apply: Pass) -> Pass:
        @functools.wraps(apply)
        def run(fusion: Fusion, precision: Precision = "strict") -> Fusion:
            return apply(fusion, precision) if any(map(holds, fusion.exprs)) else fusion

        return run

    return restricted


class Rewrite(Rebuild):
    """Walks a fusion expression by expression, and keeps each unless a pass replaces it.

    Passes match on the old fusion's values and replace them by new ones: `rewrite[old]` is the
    rewritten value of an old one. It is the old one itself unless one of its producers was
    replaced: most passes find nothing most of the time, and copy nothing.
    """

    def __init__(self, fusion: Fusion) -> None:
        builder = FusionBuilder.behind(fusion)
        self.builder = builder
        super().__init__(fusion, builder=builder, inputs=[*map(self._input, fusion.inputs)])
        self._fusion = fusion
        self.results = frozenset(fusion.results)
        self._behind = memory_behind_results(fusion)
        self._stretch = _stretches(fusion)
        self._inputs = frozenset(self[v] for v in fusion.inputs)
        self._memory: dict[Val, Val] = {}
        # Number of times that views of new values show one element of that memory.
        self._shown: dict[Val, int] = {}
        self._claims: dict[Val, TensorView] = {}
        self._returned: dict[Val, Val] = {}
        self.fired = False

    def _input(self, value: Val) -> Val:
        """The new input for an old one."""
        self.builder.keep_input(value)
        return value

    def __getitem__(self, old: Val) -> Val:
        if isinstance(old, Scalar) and old.value is not None:
            # A constant is its own new value.
            return self._new.get(old, old)
        return super().__getitem__(old)

    def walk(self) -> Iterator[Expr]:
        """The old expressions in order; new ones built in between get the current one's origin."""
        for expr in self._fusion.exprs:
            self.builder.origin = expr.origin
            yield expr

    def producer(self, old: Val) -> Expr | None:
        """The expression that computes an old value; None for inputs."""
        return self._fusion.definitions().get(old)

    def copy(self, expr: Expr) -> Val:
        if all(self[v] is v for v in expr.inputs):
            self.builder.keep(expr)
            new = expr.output
        else:
            new = self._copy(expr)
        if shows_memory(expr):
            self._looks_at(new, self[expr.input], expr.output.domain.transforms)
        self._settle(expr.output, new)
        return new

    def replace(self, old: Val, new: Val) -> None:
        self.fired = True
        self._settle(old, new)

    def _settle(self, old: Val, new: Val) -> None:
        super().replace(old, new)
        if old in self.results:
            self._returned.setdefault(new, old)
        behind = self._behind.get(old) if isinstance(old, TensorView) else None
        if behind is not None:
            self._claims.setdefault(self._memory_of(new), behind)

    def view(
        self,
        op: str,
        x: TensorView,
        transforms: Sequence[Transform],
        *,
        fill: Val | None = None,
        allocation: Sequence[int] | None = None,
    ) -> TensorView:
        """A view of the new value `x`, as `FusionBuilder.view` makes it; its memory is tracked."""
        new = self.builder.view(op, x, transforms, fill=fill, allocation=allocation)
        if op != "set" and fill is None:
            self._looks_at(new, x, transforms)
        return new

    def _looks_at(self, new: Val, source: Val, transforms: Sequence[Transform]) -> None:
        self._memory[new] = self._memory_of(source)
        self._shown[new] = self._shown.get(source, 1) * _repetitions(transforms)

    def may_become(self, old: TensorView, new: TensorView) -> bool:
        """True if the new value, which has `old`'s elements, may replace it."""
        same_form = (
            old.dtype is new.dtype
            and old.domain.logical == new.domain.logical
            and old.is_cpu == new.is_cpu
        )
        if old in self.results and (
            old.domain.allocation != new.domain.allocation
            or self._returned.get(new, old) != old
            or new in self._inputs
        ):
            return False
        return same_form and self.may_share(old, new)

    def may_share(
        self, old: TensorView, new: TensorView, transforms: Sequence[Transform] = ()
    ) -> bool:
        """True if the new value, viewed through transforms, may replace `old`."""
        memory = self._memory_of(new)
        behind = self._behind.get(old)
        if behind is None:
            return True
        if self._shown.get(new, 1) * _repetitions(transforms) > self._stretch.get(old, 1):
            return False
        if memory in self._inputs:
            return self._new.get(behind) == memory
        return self._claims.get(memory, behind) == behind

    def result(self) -> Fusion:
        """The rewritten fusion, or the same object if nothing was replaced."""
        return renumbered(self.finish(self._fusion)) if self.fired else self._fusion

    def _memory_of(self, new: Val) -> Val:
        return self._memory.get(new, new)


def _repetitions(transforms: Sequence[Transform]) -> int:
    """Number of times that a view shows each element."""
    return prod(static(step.size) for step in transforms if isinstance(step, Expand))


def _stretches(fusion: Fusion) -> dict[TensorView, int]:
    """Number of times that views show one element in memory, where that is more than once."""
    found: dict[TensorView, int] = {}
    for expr in fusion.exprs:
        if shows_memory(expr):
            times = found.get(expr.input, 1) * _repetitions(expr.output.domain.transforms)
            if times != 1:
                found[expr.output] = times
    return found
