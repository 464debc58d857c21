"""Pull: the value of a tensor at an index, as a scalar graph over loads and arguments.

`emit(tensor, index)` is memoised on (tensor, index): equal forms are one value, another form is a
recomputation. Views are substitutions of the index and make no node; pads and concatenations make a
`Select`, and the loads inside record the conditions under which they are executed.

Recursion uses an explicit stack, so a chain of a thousand operations needs no deep call stack.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from thunder_fuser.analysis.layout import address_in
from thunder_fuser.errors import InternalError
from thunder_fuser.ir.domain import Index
from thunder_fuser.ir.dtypes import Operand, compute_dtype
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    FoldOp,
    FullOp,
    GatherOp,
    IotaOp,
    OpaqueOp,
    PadOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    Scalar,
    ScanOp,
    TensorView,
    Val,
    ViewOp,
)
from thunder_fuser.ir.index_maps import pull
from thunder_fuser.ir.integer.symint import Context, Form, impossible, provable
from thunder_fuser.ir.tables import pointwise, random
from thunder_fuser.ir.tables.indexing import bounds_format
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.index import index_values
from thunder_fuser.lower.index.index_forms import index_form
from thunder_fuser.lower.scalar_graph import (
    Condition,
    Conjunction,
    ScalarGraph,
    Value,
    forms,
    reachable,
)

Request = tuple[Val, tuple[Index, ...], Conjunction]
Pulling = Generator[Request, Value, Value]


class Unreadable(Exception):
    """A reduction or scan is needed at a point where no stage of this kernel has it; schedules make
    it a Refusal.
    """

    def __init__(self, tensor: TensorView) -> None:
        super().__init__(
            f"it reads {tensor.name}, which is folded, at other points than those where the kernel "
            "has it; it needs a kernel of its own"
        )
        self.tensor = tensor


class Pull:
    """Pulls values of one kernel's outputs from what it loads."""

    def __init__(
        self,
        body: KernelBody,
        context: Context,
        inside: Conjunction = (),
        lane_index: Form | None = None,
    ) -> None:
        """`inside` holds at the points where values are needed; a loop over the padded `lane_index`
        visits others, too.
        """
        self.graph = ScalarGraph()
        self.context = context
        self._body = body
        self._definitions = body.definitions
        self._loads = body.loads
        self._given = body.given
        self._inside = inside
        self._visited = set() if lane_index is None else set(lane_index.variables())
        self._memo: dict[Request, Value] = {}
        self._zero = context.const(0)
        self._folded_at: dict[TensorView, tuple[Index, ...]] = {}

    def fold_at(self, tensor: TensorView, index: Sequence[Index]) -> None:
        """Declare the reduction or scan `tensor` available at a point for subsequent pulls."""
        self._folded_at[tensor] = self._canonical(tensor, index)

    def emit(self, tensor: TensorView, index: Sequence[Index]) -> Value:
        """Return the value of `tensor` at `index`, one form per logical dimension."""
        first: Request = (tensor, self._canonical(tensor, index), self._inside)
        stack: list[tuple[Request, Pulling]] = []
        self._enter(first, stack)
        sent: Value | None = None
        while stack:
            request, pulling = stack[-1]
            try:
                wanted = pulling.send(sent)  # type: ignore[arg-type]
            except StopIteration as done:
                self._memo[request] = sent = done.value
                stack.pop()
                continue
            sent = self._memo.get(wanted)
            if sent is None:
                self._enter(wanted, stack)
        return self._memo[first]

    def _enter(self, request: Request, stack: list[tuple[Request, Pulling]]) -> None:
        if request not in self._memo:
            stack.append((request, self._pull(*request)))

    def _canonical(self, tensor: TensorView, index: Sequence[Index]) -> tuple[Index, ...]:
        """Set the index of broadcast dimensions, which hold one element, to 0."""
        return tuple(
            self._zero if dim.is_broadcast else i
            for dim, i in zip(tensor.domain.logical, index, strict=True)
        )

    def _at(self, tensor: TensorView, index: Sequence[Index], context: Conjunction) -> Request:
        return tensor, self._canonical(tensor, index), context

    def _pull(self, value: Val, index: tuple[Index, ...], context: Conjunction) -> Pulling:
        if isinstance(value, Scalar):
            return self._scalar(value)
        if value.numel == 0:
            return self._nothing(value)
        if value in self._given:
            return self._anywhere(value)
        if value in self._loads:
            return self._load(value, index, context)
        expr = self._definitions.get(value)
        match expr:
            case PointwiseOp():
                return self._pointwise(expr, index, context)
            case ViewOp() | CopyOp() | CutOp():
                return self._view(expr, index, context)
            case PadOp():
                return self._pad(expr, index, context)
            case CatOp():
                return self._cat(expr, index, context)
            case FullOp():
                return self._fill(expr.fill)
            case IotaOp():
                return self._iota(expr, index)
            case RandomOp():
                return self._random(expr, index)
            case ReductionOp() | ScanOp():
                return self._folded(expr, index)
            case GatherOp():
                return self._gather(expr, index, context)
            case OpaqueOp():
                raise InternalError(f"{value}, which torch computes, is not in memory")
            case None:
                raise InternalError(f"{value} has neither a definition nor memory")

    def _scalar(self, scalar: Scalar) -> Pulling:
        expr = self._definitions.get(scalar)
        if isinstance(expr, PointwiseOp):
            return (yield from self._pointwise(expr, (), ()))
        if scalar.value is None:
            return self.graph.argument(scalar)
        if isinstance(scalar.value, Form):
            raise InternalError(f"{scalar} is symbolic; specialise the fusion before lowering it")
        return self.graph.literal(scalar.value, scalar.dtype)

    def _nothing(self, tensor: TensorView) -> Pulling:
        # No point of an empty tensor is ever needed; a constant keeps selects well formed.
        return self.graph.literal(0, tensor.dtype)
        yield  # a generator like its siblings

    def _anywhere(self, tensor: TensorView) -> Pulling:
        return self.graph.argument(tensor)
        yield

    def _load(self, tensor: TensorView, index: tuple[Index, ...], context: Conjunction) -> Pulling:
        if tensor.is_cpu:
            return self.graph.argument(tensor)
        is_input = tensor not in self._definitions
        layout = self._loads[tensor]
        address = address_in(tensor, index, layout, self.context, is_input=is_input)
        return self.graph.load(tensor, address, self._needed([address], context))
        yield

    def _needed(self, wanted: Sequence[Form], context: Conjunction) -> Conjunction:
        """Return the conditions that guard an access. `inside` is dropped for an access that does
        not depend on the padded index: padding points repeat the access of a valid point.
        """
        if not self._inside:
            return context
        rest = tuple(c for c in context if c not in self._inside)
        mentioned = {v for form in (*wanted, *rest) for v in form.variables()}
        positions = [self.graph.positions[v] for v in mentioned if v in self.graph.positions]
        for node in reachable(positions):
            mentioned.update(v for form in forms(node) for v in form.variables())
        return context if self._visited & mentioned else rest

    def _pointwise(
        self, expr: PointwiseOp, index: tuple[Index, ...], context: Conjunction
    ) -> Pulling:
        args: list[Value] = []
        for operand in expr.inputs:
            if isinstance(operand, Scalar):
                args.append((yield operand, (), ()))
            else:
                aligned = index[len(index) - operand.rank :]
                args.append((yield self._at(operand, aligned, context)))
        kinds = [
            Operand(v.dtype, v.rank if isinstance(v, TensorView) else None) for v in expr.inputs
        ]
        dtypes = pointwise.lookup(expr.op).operand_dtypes(kinds)
        return index_values.compute(self.graph, expr.op, tuple(args), dtypes, expr.output.dtype)

    def _view(
        self, expr: ViewOp | CopyOp | CutOp, index: tuple[Index, ...], context: Conjunction
    ) -> Pulling:
        domain = expr.output.domain
        point, _ = pull(index, domain.root, domain.transforms, self._zero)
        return (yield self._at(expr.input, point, context))

    def _pad(self, expr: PadOp, index: tuple[Index, ...], context: Conjunction) -> Pulling:
        domain = expr.output.domain
        point, guards = pull(index, domain.root, domain.transforms, self._zero)
        wanted: list[Condition] = []
        for guard in guards:
            wanted += [guard.index] if guard.lower else []
            wanted += [guard.extent - 1 - guard.index] if guard.upper else []
        outside: Value = yield expr.fill, (), ()
        open_conditions = self._open(wanted, context)
        is_empty = not expr.input.numel or any(guard.extent == 0 for guard in guards)
        if open_conditions is None or is_empty:
            return outside
        inner = _and(context, open_conditions)
        inside: Value = yield self._at(expr.input, point, inner)
        return self.graph.select(open_conditions, inside, outside)

    def _cat(self, expr: CatOp, index: tuple[Index, ...], context: Conjunction) -> Pulling:
        """Emit a cascade of selects: piece k is read where the index is below its end and not below
        an earlier piece's.
        """
        found: list[tuple[Conjunction, Value]] = []
        start = 0
        pieces = [t for t in expr.inputs if t.numel] or list(expr.inputs[:1])
        for k, piece in enumerate(pieces):
            i = index[expr.dim] - start
            end = start + piece.sizes[expr.dim]
            ahead = end - 1 - index[expr.dim]
            conditions = self._open([] if k == len(pieces) - 1 else [ahead], context)
            start = end
            if conditions is None:
                continue
            at = (*index[: expr.dim], i, *index[expr.dim + 1 :])
            value = yield self._at(piece, at, _and(context, conditions))
            found.append((conditions, value))
            if not conditions:
                break
            context = _and(context, (-ahead - 1,))
        _, result = found.pop()
        for conditions, value in reversed(found):
            result = self.graph.select(conditions, value, result)
        return result

    def _fill(self, fill: Val) -> Pulling:
        return (yield fill, (), ())

    def _iota(self, expr: IotaOp, index: tuple[Index, ...]) -> Pulling:
        start: Value = yield expr.start, (), ()
        step: Value = yield expr.step, (), ()
        # Computed in the compute type and rounded once, as every operation is.
        dtype = expr.output.dtype
        wide = compute_dtype(dtype)
        position = self.graph.index(index[0], wide)
        scaled = index_values.compute(self.graph, "mul", (position, step), (wide, wide), wide)
        return index_values.compute(self.graph, "add", (scaled, start), (wide, wide), dtype)

    def _random(self, expr: RandomOp, index: tuple[Index, ...]) -> Pulling:
        """Emit the random sample of the logical element, which does not depend on the schedule."""
        seed: Value = yield expr.seed, (), ()
        offset: Value = yield expr.offset, (), ()
        first: Value = yield expr.parameters[0], (), ()
        second: Value = yield expr.parameters[1], (), ()
        dtype, element = expr.output.dtype, self._zero
        for i, size in zip(index, expr.output.sizes, strict=True):
            element = element * size + i
        count = random.numbers_per_call(dtype)
        standard = random.standard_dtype(dtype)
        draw = self.graph.draw(expr.op, seed, offset, element // count, standard)
        return self.graph.random(draw, element % count, (first, second), dtype)

    def _folded(self, expr: FoldOp, index: tuple[Index, ...]) -> Pulling:
        """Emit a stage's result, which can be read only at the point given to `fold_at`."""
        if self._folded_at.get(expr.output) != index:
            raise Unreadable(expr.output)
        return self.graph.folded(expr.output, index)
        yield

    def _gather(self, expr: GatherOp, index: tuple[Index, ...], context: Conjunction) -> Pulling:
        """Emit the input at a data-dependent index: a variable in the forms of its users."""
        place = [index[k] for k in expr.index_axes]
        point = [index[k] for k in expr.input_axes]
        extent = expr.input.sizes[expr.dim]
        known = index_form(expr.index, self._canonical(expr.index, place), self._body, self._zero)
        if known is not None and provable(known, 0, extent - 1):
            point.insert(expr.dim, known)
            return (yield self._at(expr.input, point, context))
        value: Value = yield self._at(expr.index, place, context)
        mentioned = [form for node in reachable([value]) for form in forms(node)]
        position = self.graph.position(
            value,
            extent,
            f"{expr}: index %lld {bounds_format(extent)}",
            self._needed(mentioned, context),
            self.context,
        )
        point.insert(expr.dim, position.form)
        found: Value = yield self._at(expr.input, point, context)
        # Broadcasts and constants do not depend on the index, which must be checked nevertheless.
        return found if position in reachable([found]) else self.graph.checked(found, position)

    def _open(self, wanted: Sequence[Condition], context: Conjunction) -> Conjunction | None:
        """Return the conditions that bounds and context leave undecided; None if one is provably
        false.
        """
        left: list[Condition] = []
        for condition in wanted:
            if provable(condition, 0, None) or condition in context:
                continue
            if impossible(condition, 0, None) or (-condition - 1) in context:
                return None
            left.append(condition)
        return tuple(left)


def _and(context: Conjunction, conditions: Conjunction) -> Conjunction:
    return context + tuple(c for c in conditions if c not in context)
