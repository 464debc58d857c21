"""Propagation: which placement every tensor of a fusion has on a mesh, and what is communicated.

What the user annotates stays as it is. Each expression takes the strategy that communicates fewest
bytes for the placements that its operands have, and of equal ones the one whose result is smallest.
Mesh axes are propagated one after the other; an input that nobody annotates takes what its first
reader wants of it.
"""

from __future__ import annotations

import math
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
from thunder_fuser.sharding.mesh import (
    REPLICATE,
    DeviceMesh,
    Partial,
    Placement,
    Replicate,
    Shard,
    Sharding,
    factors,
    fits,
)
from thunder_fuser.sharding.shardings import Communication, Shardings


class _Strategy(NamedTuple):
    """Placements of all operands, and of the result that is computed from them."""

    operands: tuple[Placement, ...]
    result: Placement


def propagate(
    fusion: Fusion, mesh: DeviceMesh, annotations: Mapping[TensorView, Mapping[str, Placement]]
) -> Shardings:
    """Shardings of a static fusion. `annotations` gives placements by the names of mesh axes; an
    axis that an annotated tensor does not mention replicates it.

    Raises FuserValueError for axes that the mesh has not, and for shards that do not divide.
    """
    asked = {t: _asked(t, mesh, names) for t, names in annotations.items()}
    values = set(fusion.values())
    for tensor in asked:
        if tensor not in values:
            raise FuserValueError(f"{tensor} is annotated, and is no tensor of the fusion")
    found = Shardings(fusion, mesh)
    for update in fusion.updates:
        # What is written into an input is placed as that is.
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
    found.communications = [_exact(c, found) for c in found.communications]
    return found


def _exact(c: Communication, found: Shardings) -> Communication:
    """The same, with what a device sends now that all axes are known."""
    later = found.made[c.tensor][c.axis + 1 :]
    shares = math.prod(p.size for p in later if isinstance(p, Shard))
    return replace(c, bytes=c.bytes // shares)


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
    for dim, extent in enumerate(tensor.sizes):
        factors(extent, dim, tuple(found))
    return tuple(found)


class _Axis:
    """Propagation along one axis of the mesh; those before it are known."""

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
        # What annotated tensors of the same sizes are.
        self._asked_of: dict[tuple[int, ...], dict[Placement, None]] = {}
        for tensor, sharding in asked.items():
            self._asked_of.setdefault(tensor.sizes, {})[sharding[axis]] = None
        self._even: dict[tuple[tuple[int, ...], Sharding], bool] = {}
        self._calls: dict[int, tuple[Placement, ...]] = {}
        self._readers: dict[TensorView, list[Expr]] = {}
        for expr in found.fusion.exprs:
            for tensor in rules.tensors_of(expr):
                self._readers.setdefault(tensor, []).append(expr)
        # Casts of partial sums to wider numbers, and who is read as a partial sum.
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
            # Operands that are placed alike ask for the same.
            found = dict.fromkeys(self._strategies(expr, operands, asked))
            strategies = [s for s in found if self._fits(s, k, expr)]
            # The first of equal ones: strategies come in the order of the operands.
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
            # Before anybody reads it: what is read is what is returned.
            self._pay(output, REPLICATE, "it is a result")
            self.placed[output] = REPLICATE

    def _of_call(self, expr: OpaqueOp, operands: Sequence[TensorView]) -> _Strategy:
        """Another result of a call, whose operands are decided."""
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
            # A view of what is whole already; a shard of it costs nothing.
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
        """Shards that operands have, and those that partial ones may be scattered to."""
        for n, tensor in enumerate(operands):
            placed = self.placed[tensor]
            if isinstance(placed, Shard):
                yield n, placed
            elif isinstance(placed, Partial):
                yield from ((n, shard) for shard in self._scattered(tensor))

    def _scattered(self, partial: TensorView) -> Iterator[Shard]:
        """What a partial result may be scattered to: what all annotated tensors of its sizes are.
        Where they differ, as whole residuals and heads do, others would gather it again.
        """
        found = self._asked_of.get(partial.sizes, {})
        return (placed for placed in found if isinstance(placed, Shard) and len(found) == 1)

    def _can_be_parts(self, operands: Sequence[TensorView], wanted: Sequence[Placement]) -> bool:
        """Whether what is wanted as a part of each element is that, or what every device has."""
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
        """Partial sums that an operation may be done to before they are summed: it is linear, in
        all operands, or, a product, in each by itself.
        """
        placed = tuple(self.placed[t] or REPLICATE for t in operands)
        partial = Partial("sum")
        linear = isinstance(expr, PointwiseOp) and expr.op in ("neg", "add", "sub")
        either = all(p in (partial, REPLICATE) for p in placed)
        if linear and either and partial in placed and self._is_summed_on(expr):
            # Of what everybody has, one device adds all.
            placed = (partial,) * len(placed)
        linear = linear and len(operands) == len(expr.inputs)
        linear = linear or isinstance(expr, ViewOp | CopyOp | CutOp)
        linear = linear or (isinstance(expr, ReductionOp) and expr.op == "sum")
        if isinstance(expr, PointwiseOp) and expr.op == "cast" and operands:
            # Rounded before they are summed, as the products are that they come from.
            linear = all(t.dtype.is_floating for t in (*operands, expr.output))
        if linear and placed and all(p == partial for p in placed):
            yield _Strategy(placed, partial)
        if isinstance(expr, OpaqueOp) and expr.op in ("matmul", "linear") and len(operands) == 2:
            for k, p in enumerate(placed):
                if p == partial:
                    others = tuple(partial if n == k else REPLICATE for n in range(2))
                    yield _Strategy(others, partial)

    def _is_summed_on(self, expr: Expr) -> bool:
        """Whether a sum is read by another sum alone, so that one reduction does for both."""
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
        """Whether what expression `k` reads and makes is even beside the axes before."""
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
        moved = sum(self._moved(tensor, self.placed[tensor], p)[1] for tensor, p in wanted)
        if isinstance(strategy.result, Partial):
            # Somebody folds it, sooner or later; of a cast, the narrower side.
            target = asked or next(self._scattered(output), REPLICATE)
            folded = self._moved(output, strategy.result, target)[1]
            if expr.op == "cast":
                folded = folded * min(operands[0].bytes, output.bytes) // output.bytes
            moved += folded
        elif asked is not None:
            moved += self._moved(output, strategy.result, asked)[1]
        shared = self.size if isinstance(strategy.result, Shard) else 1
        return moved, output.bytes // shared

    def _moved(
        self, tensor: TensorView, source: Placement | None, target: Placement
    ) -> tuple[str, int]:
        """What brings a tensor from one placement to another, and the bytes that a device sends."""
        if source is None or source == target or (tensor, target) in self.paid:
            return "", 0
        held = min(tensor.bytes, self._narrow(tensor, source)[1].bytes)
        for placement in self.found.given.get(tensor, ()):
            held //= placement.size if isinstance(placement, Shard) else 1
        others = held * (self.size - 1) // self.size
        match source, target:
            case (Replicate(), Shard()) | (Replicate(), Partial("sum")):
                return "slice", 0
            case Shard(), Replicate():
                return "all_gather", others
            case Shard(), Shard():
                return "all_to_all", others // self.size
            case Partial(), Replicate():
                return "all_reduce", 2 * others
            case Partial(), Shard():
                return "reduce_scatter", others
        raise FuserValueError(
            f"{tensor}: {source} cannot become {target}; annotate it as replicated or as a shard"
        )

    def _narrow(self, tensor: TensorView, source: Placement) -> tuple[int, TensorView]:
        """A cast's position and operand, where that can be communicated in the place of its wider
        result; the tensor itself, of no position, otherwise.
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
        kind, moved = self._moved(tensor, source, target)
        if kind and source is not None:
            self.paid.add((tensor, target))
            made = Communication(tensor, self.axis, source, target, kind, moved, reason)
            self.found.communications.append(made)

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
