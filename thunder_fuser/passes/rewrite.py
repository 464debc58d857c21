"""Rewrite: a `Rebuild` for passes that put one value in the place of another.

Equal numbers are not enough for that. What a fusion returns is memory that the caller may write
into: `x * 1` is a new tensor and `x` is not, and two equal results are two tensors. So a value
behind a result is only replaced by one whose memory is neither an input's nor another result's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from thunder_fuser.ir.domain import Transform
from thunder_fuser.ir.fusion import Expr, Fusion, TensorView, Val, ViewOp
from thunder_fuser.ir.rebuild import Rebuild

Precision = Literal["strict", "fast"]
"""strict: no bit of a result changes. fast: roundings of intermediate values may be skipped."""


class Rewrite(Rebuild):
    """Copies a fusion expression by expression, except where a pass replaces.

    Passes match on the old fusion's values and replace by new ones: `rewrite[old]` is the new value
    for an old one, itself rewritten already.
    """

    def __init__(self, fusion: Fusion) -> None:
        super().__init__(fusion)
        self._fusion = fusion
        self.results = frozenset(fusion.results)
        self._behind = memory_behind_results(fusion)
        self._inputs = frozenset(self[v] for v in fusion.inputs)
        self._memory: dict[Val, Val] = {}
        self._claims: dict[Val, TensorView] = {}
        self._returned: dict[Val, Val] = {}
        self.fired = False

    def walk(self) -> Iterator[Expr]:
        """The old expressions in order; what is built meanwhile gets the present one's origin."""
        for expr in self._fusion.exprs:
            self.builder.origin = expr.origin
            yield expr

    def copy(self, expr: Expr) -> Val:
        new = self._copy(expr)
        if isinstance(expr, ViewOp) and _is_window(expr):
            self._memory[new] = self._memory_of(self[expr.input])
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
        """A view of the new value `x`, as `FusionBuilder.view` makes it."""
        new = self.builder.view(op, x, transforms, fill=fill, allocation=allocation)
        if op != "set" and fill is None:
            self._memory[new] = self._memory_of(x)
        return new

    def may_become(self, old: TensorView, new: TensorView) -> bool:
        """Whether the new value, which has `old`'s elements, may be put in its place."""
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

    def may_share(self, old: TensorView, new: TensorView) -> bool:
        """Whether a view of the new value may be put in the place of `old`."""
        memory = self._memory_of(new)
        behind = self._behind.get(old)
        if behind is None:
            return True
        if memory in self._inputs:
            return self._new.get(behind) == memory
        return self._claims.get(memory, behind) == behind

    def result(self) -> Fusion:
        """The rewritten fusion, or the very same one if nothing was replaced."""
        return self.finish(self._fusion) if self.fired else self._fusion

    def _memory_of(self, new: Val) -> Val:
        return self._memory.get(new, new)


def _is_window(expr: ViewOp) -> bool:
    """Views look at their input's memory, but `set` is a copy and a pad has elements of its own."""
    return expr.op != "set" and expr.fill is None


def memory_behind_results(fusion: Fusion) -> dict[TensorView, TensorView]:
    """For every value that a result looks at, or is: the value whose memory that is."""
    definitions = fusion.definitions()
    behind: dict[TensorView, TensorView] = {}
    for result in fusion.results:
        chain = [result]
        while isinstance(expr := definitions.get(chain[-1]), ViewOp) and _is_window(expr):
            chain.append(expr.input)
        behind.update(dict.fromkeys(chain, chain[-1]))
    return behind
