"""Propagation of placements: choice of the placement of every tensor of a fusion on a mesh, and of
the communication.

Annotations of the user are kept. Each expression takes the strategy that communicates the fewest
bytes for the placements of its operands; among equal ones, the one whose result is smallest. Mesh
axes are propagated one after the other; an input without annotation takes the placement that its
first reader wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.fusion import (
    CopyOp,
    CutOp,
    Expr,
    FullOp,
    Fusion,
    OpaqueOp,
    PointwiseOp,
    ReductionOp,
    TensorView,
    ViewOp,
)
from thunder_fuser.sharding import rules
from thunder_fuser.sharding.changes import communication
from thunder_fuser.sharding.communications import communications_of
from thunder_fuser.sharding.mesh import (
    REPLICATE,
    DeviceMesh,
    Partial,
    Placement,
    Replicate,
    Shard,
    Sharding,
    check_partial,
    factors,
    fits,
)
from thunder_fuser.sharding.shardings import Shardings


class _Strategy(NamedTuple):
    """Placements of all operands of an expression, and of the result computed from them."""

    operands: tuple[Placement, ...]
    result: Placement


def propagate(
    fusion: Fusion, mesh: DeviceMesh, annotations: Mapping[TensorView, Mapping[str, Placement]]
) -> Shardings:
    """Return the shardings of a static fusion, dead code left out. `annotations`: placements of
    tensors by names of mesh axes; along other axes these tensors are replicated.

    Raises FuserValueError for unknown axes and tensors, and for shards that do not divide.
    """
    asked = {t: _asked(t, mesh, names) for t, names in annotations.items()}
    values = set(fusion.values())
    for tensor in asked:
        if tensor not in values:
            raise FuserValueError(f"{tensor} is annotated, and is no tensor of the fusion")
    fusion = replace(fusion, exprs=tuple(fusion.backward_slice(fusion.results, ())))
    values = set(fusion.values())
    asked = {tensor: placed for tensor, placed in asked.items() if tensor in values}
    found = Shardings(fusion, mesh)
    for update in fusion.updates:
        # The value of an update has the placement of its target.
        whole = (REPLICATE,) * len(mesh.shape)
        placed = asked.setdefault(update.target, asked.get(update.value, whole))
        if asked.setdefault(update.value, placed) != placed:
            raise FuserValueError(
                f"{update.value} is written into {update.target}, and both are annotated, with "
                "different placements; give them one"
            )
    found.asked = asked
    for axis in range(len(mesh.shape)):
        _Axis(found, axis, asked).run()
    found.communications = communications_of(found)
    return found


def _asked(tensor: TensorView, mesh: DeviceMesh, names: Mapping[str, Placement]) -> Sharding:
    found: list[Placement] = [REPLICATE] * len(mesh.shape)
    for name, placement in names.items():
        axis = mesh.axis(name)
        if isinstance(placement, Shard) and placement.size != mesh.shape[axis]:
            raise FuserValueError(
                f"{tensor}: a shard over {placement.size} devices along mesh axis {name}, which "
                f"has {mesh.shape[axis]}; they must be as many"
            )
        found[axis] = placement
    check_partial(found, str(tensor))
    for dim, extent in enumerate(tensor.sizes):
        factors(extent, dim, tuple(found))
    return tuple(found)


class _Axis:
    """Propagation along one mesh axis; placements along axes before it are known."""

    def __init__(self, found: Shardings, axis: int, asked: Mapping[TensorView, Sharding]) -> None:
        self.found = found
        self.axis = axis
        self.asked = asked
        self.size = found.mesh.shape[axis]
        self.placed: dict[TensorView, Placement | None] = {}
        self.made: dict[TensorView, Placement] = {}
        self.reads: dict[tuple[int, int], Placement] = {}
        self.paid: set[tuple[TensorView, Placement]] = set()
        self.results = frozenset(found.fusion.results)
        # Placements of annotated tensors, by their sizes.
        self._asked_of: dict[tuple[int, ...], dict[Placement, None]] = {}
        for tensor, sharding in asked.items():
            self._asked_of.setdefault(tensor.sizes, {})[sharding[axis]] = None
        self._even: dict[tuple[tuple[int, ...], Sharding], bool] = {}
        self._calls: dict[int, tuple[Placement, ...]] = {}
        self._readers: dict[TensorView, list[Expr]] = {}
        for expr in found.fusion.exprs:
            for tensor in rules.tensors_of(expr):
                self._readers.setdefault(tensor, []).append(expr)
        # Casts of partial sums to wider dtypes, and tensors that are read as partial sums.
        self._widened: dict[TensorView, tuple[int, TensorView]] = {}
        self._read_partial: set[TensorView] = set()

    def run(self) -> None:
        fusion = self.found.fusion
        for tensor in fusion.tensor_inputs:
            asked = self.asked.get(tensor)
            self.placed[tensor] = None if asked is None else asked[self.axis]
        for k, expr in enumerate(fusion.exprs):
            if isinstance(expr.output, TensorView):
                self._run(k, expr, expr.output)
        for tensor, placement in self.placed.items():
            if placement is None:
                self.placed[tensor] = REPLICATE
        self._store()

    def _run(self, k: int, expr: Expr, output: TensorView) -> None:
        operands = rules.tensors_of(expr)
        asked = self.asked[output][self.axis] if output in self.asked else None
        if isinstance(expr, FullOp) and asked is None:
            self.placed[output] = None
            return
        if isinstance(expr, OpaqueOp) and expr.call in self._calls:
            chosen = self._of_call(expr, operands)
        else:
            # Operands with equal placements give equal strategies.
            found = dict.fromkeys(self._strategies(expr, operands, asked))
            strategies = [s for s in found if self._fits(s, k, expr)]
            # Of equal prices the first one wins: strategies come in the order of the operands.
            chosen = min(strategies, key=lambda s: self._price(s, expr, operands, output, asked))
        if isinstance(expr, OpaqueOp):
            self._calls[expr.call] = chosen.operands
        for n, (tensor, wanted) in enumerate(zip(operands, chosen.operands, strict=True)):
            if self.placed[tensor] is None:
                self.placed[tensor] = REPLICATE if isinstance(wanted, Partial) else wanted
            self._pay(tensor, wanted, self._reason(expr, tensor, wanted))
            self.reads[k, n] = wanted
            if isinstance(wanted, Partial):
                self._read_partial.add(tensor)
        if isinstance(chosen.result, Partial) and expr.op == "cast":
            (source,) = operands
            if source.bytes < output.bytes:
                self._widened[output] = k, source
        self.made[output] = self.placed[output] = chosen.result
        if asked is not None and asked != chosen.result:
            self._pay(output, asked, "it is annotated so")
            self.placed[output] = asked
        elif asked is None and isinstance(chosen.result, Partial) and output in self.results:
            # Reduce before it is read: readers and the caller get the same tensor.
            self._pay(output, REPLICATE, "it is a result")
            self.placed[output] = REPLICATE

    def _of_call(self, expr: OpaqueOp, operands: Sequence[TensorView]) -> _Strategy:
        """Return the strategy of another result of a call whose operands are placed."""
        placed = self._calls[expr.call]
        for n, placement in enumerate(placed):
            if isinstance(placement, Shard):
                pushed = rules.push(expr, n, placement)
                return _Strategy(placed, pushed if isinstance(pushed, Shard) else REPLICATE)
        return _Strategy(placed, REPLICATE)

    def _strategies(
        self, expr: Expr, operands: Sequence[TensorView], asked: Placement | None
    ) -> Iterator[_Strategy]:
        if isinstance(asked, Shard):
            yield from self._for_result(expr, operands, asked)
        yield from self._through(expr, operands)
        if isinstance(expr, ViewOp | CutOp) and (operands[0], REPLICATE) in self.paid:
            # A view of a tensor that is gathered already; slicing it later costs nothing.
            yield _Strategy((REPLICATE,), REPLICATE)
            return
        for n, shard in self._shards(operands):
            pushed = rules.push(expr, n, shard)
            if isinstance(pushed, Shard):
                yield from self._for_result(expr, operands, pushed)
            elif pushed is rules.Folded.FOLDED:
                found = rules.folded_strategy(expr, n, shard)
                if found is not None and self._can_be_parts(operands, found[0]):
                    yield _Strategy(tuple(found[0]), Partial(found[1]))
        yield _Strategy((REPLICATE,) * len(operands), REPLICATE)

    def _shards(self, operands: Sequence[TensorView]) -> Iterator[tuple[int, Shard]]:
        """Yield shards of operands, and shards that partial operands may be scattered to."""
        for n, tensor in enumerate(operands):
            placed = self.placed[tensor]
            if isinstance(placed, Shard):
                yield n, placed
            elif isinstance(placed, Partial):
                yield from ((n, shard) for shard in self._scattered(tensor))

    def _scattered(self, partial: TensorView) -> Iterator[Shard]:
        """Yield the shard that a partial result may be scattered to: that of all annotated tensors
        of its sizes. If these differ, as for whole residuals and heads, readers would gather it.
        """
        found = self._asked_of.get(partial.sizes, {})
        return (placed for placed in found if isinstance(placed, Shard) and len(found) == 1)

    def _can_be_parts(self, operands: Sequence[TensorView], wanted: Sequence[Placement]) -> bool:
        """True if operands wanted as partial results are so placed, or are replicated."""
        return all(
            not isinstance(p, Partial) or (self.placed[t] or REPLICATE) in (p, REPLICATE)
            for t, p in zip(operands, wanted, strict=True)
        )

    def _for_result(
        self, expr: Expr, operands: Sequence[TensorView], shard: Shard
    ) -> Iterator[_Strategy]:
        found = [rules.pull(expr, n, shard) for n in range(len(operands))]
        placed = [p for p in found if p is not None]
        if len(placed) == len(found):
            yield _Strategy(tuple(placed), shard)

    def _through(self, expr: Expr, operands: Sequence[TensorView]) -> Iterator[_Strategy]:
        """Yield strategies that apply a linear operation to partial sums before they are reduced:
        linear in all operands together, or, for products, in each one.
        """
        placed = tuple(self.placed[t] or REPLICATE for t in operands)
        partial = Partial("sum")
        linear = isinstance(expr, PointwiseOp) and expr.op in ("neg", "add", "sub")
        either = all(p in (partial, REPLICATE) for p in placed)
        if linear and either and partial in placed and self._is_summed_on(expr):
            # A replicated operand is added by one device only.
            placed = (partial,) * len(placed)
        linear = linear and len(operands) == len(expr.inputs)
        linear = linear or isinstance(expr, ViewOp | CopyOp | CutOp)
        linear = linear or (isinstance(expr, ReductionOp) and expr.op == "sum")
        if isinstance(expr, PointwiseOp) and expr.op == "cast" and operands:
            # Partial sums are rounded before they are reduced, as the products behind them are.
            linear = all(t.dtype.is_floating for t in (*operands, expr.output))
        if linear and placed and all(p == partial for p in placed):
            yield _Strategy(placed, partial)
        if isinstance(expr, OpaqueOp) and expr.op in ("matmul", "linear") and len(operands) == 2:
            for k, p in enumerate(placed):
                if p == partial:
                    others = tuple(partial if n == k else REPLICATE for n in range(2))
                    yield _Strategy(others, partial)

    def _is_summed_on(self, expr: Expr) -> bool:
        """True if the only reader of a sum, behind casts, is a sum: one reduction serves both."""
        value = expr.output
        while isinstance(value, TensorView) and value not in self.results:
            readers = self._readers.get(value, ())
            if len(readers) != 1 or not isinstance(readers[0], PointwiseOp):
                return False
            if readers[0].op in ("add", "sub"):
                return True
            if readers[0].op != "cast":
                return False
            value = readers[0].output
        return False

    def _fits(self, strategy: _Strategy, k: int, expr: Expr) -> bool:
        """True if the shards of operands and result of expression `k` are even, given the shards
        along axes before.
        """
        found, output = self.found, expr.output
        assert isinstance(output, TensorView)
        if isinstance(strategy.result, Shard) and not self._is_even(
            output, (*found.made.get(output, ()), strategy.result)
        ):
            return False
        return all(
            self._is_even(tensor, (*found.reads.get((k, n), ()), placed))
            for n, (tensor, placed) in enumerate(
                zip(rules.tensors_of(expr), strategy.operands, strict=True)
            )
            if isinstance(placed, Shard)
        )

    def _is_even(self, tensor: TensorView, sharding: Sharding) -> bool:
        key = tensor.sizes, sharding
        known = self._even.get(key)
        if known is None:
            known = self._even[key] = fits(*key)
        return known

    def _price(
        self,
        strategy: _Strategy,
        expr: Expr,
        operands: Sequence[TensorView],
        output: TensorView,
        asked: Placement | None,
    ) -> tuple[int, int]:
        wanted = dict.fromkeys(zip(operands, strategy.operands, strict=True))
        moved = sum(self._moved(tensor, self.placed[tensor], p) for tensor, p in wanted)
        if isinstance(strategy.result, Partial):
            # A partial result has to be reduced at last; for a cast, on its narrower side.
            target = asked or next(self._scattered(output), REPLICATE)
            folded = self._moved(output, strategy.result, target)
            if expr.op == "cast":
                folded = folded * min(operands[0].bytes, output.bytes) // output.bytes
            moved += folded
        elif asked is not None:
            moved += self._moved(output, strategy.result, asked)
        shared = self.size if isinstance(strategy.result, Shard) else 1
        return moved, output.bytes // shared

    def _moved(self, tensor: TensorView, source: Placement | None, target: Placement) -> int:
        """Return the bytes that a device sends for a change of placement along this axis, given the
        axes before.
        """
        if source is None or source == target or (tensor, target) in self.paid:
            return 0
        held = min(tensor.bytes, self._narrow(tensor, source)[1].bytes)
        for placement in self.found.given.get(tensor, ()):
            held //= placement.size if isinstance(placement, Shard) else 1
        if isinstance(source, Shard):
            held //= self.size
        return communication(source, target, held, self.size)[1]

    def _narrow(self, tensor: TensorView, source: Placement) -> tuple[int, TensorView]:
        """Return position and operand of a widening cast, if the operand can be communicated in
        place of its result `tensor`; otherwise (-1, tensor).
        """
        if not isinstance(source, Partial) or tensor in self._read_partial:
            return -1, tensor
        return self._widened.get(tensor, (-1, tensor))

    def _pay(self, tensor: TensorView, target: Placement, reason: str) -> None:
        source = self.placed[tensor]
        if source is not None and source != target:
            k, narrow = self._narrow(tensor, source)
            if narrow is not tensor:
                self._pay(narrow, target, reason)
                self.reads[k, 0] = target
                self.made[tensor] = self.placed[tensor] = target
                return
        if source is not None and source != target and (tensor, target) not in self.paid:
            self.paid.add((tensor, target))
            self.found.reasons[tensor, self.axis, target] = reason

    def _reason(self, expr: Expr, tensor: TensorView, wanted: Placement) -> str:
        have = self.placed[tensor]
        out = expr.output.name if isinstance(expr.output, TensorView) else ""
        if isinstance(have, Partial):
            return f"{expr.op} -> {out} reads whole elements"
        if isinstance(have, Shard) and isinstance(wanted, Replicate):
            return (
                f"{expr.op} -> {out}: no digit of its index is (i{have.dim} // {have.width}) % "
                f"{have.size} of {tensor.name}'s [{', '.join(map(str, tensor.sizes))}]"
            )
        return f"{expr.op} -> {out}"

    def _store(self) -> None:
        found = self.found
        for tensor, placement in self.placed.items():
            assert placement is not None
            before = found.given.get(tensor, ())
            found.given[tensor] = (*before, placement)
            made = self.made.get(tensor, placement)
            found.made[tensor] = (*found.made.get(tensor, ()), made)
        for k, expr in enumerate(found.fusion.exprs):
            for n in range(len(rules.tensors_of(expr))):
                wanted = self.reads.get((k, n), REPLICATE)
                found.reads[k, n] = (*found.reads.get((k, n), ()), wanted)
