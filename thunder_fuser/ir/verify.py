"""Verifier of well-formed Fusions: a table of checks for each stage, run between passes in tests.

Users' mistakes are found by the builder, so every failure is an InternalError, which names the
expression and its line in the user's program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType

from thunder_fuser.errors import FuserError, InternalError
from thunder_fuser.ir.builder.indexing import gathered_dims
from thunder_fuser.ir.domain import (
    Assume,
    Expand,
    Merge,
    NewBroadcast,
    Reduce,
    Reorder,
    Resize,
    Split,
    Squeeze,
    TensorDomain,
    broadcast,
    constant_if_known,
    replay,
    shape_text,
)
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import (
    CatOp,
    Expr,
    FullOp,
    Fusion,
    GatherOp,
    IotaOp,
    MoveOp,
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
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.tables import indexing, opaque, pointwise, random, reductions, scans
from thunder_fuser.ir.tables.call_shapes import Shaped

Check = Callable[[Fusion], Iterator[tuple[Expr | None, str]]]
"""Yields (offending expression or None, description of the violation)."""


def verify(fusion: Fusion, stage: str = "built") -> Fusion:
    """The fusion itself, so that calls chain; InternalError at the first violated rule.

    Stages: "built" by a definition or a trace; "specialised", with every size known; "folded" by
    passes that join chains of views, with every size known.
    """
    for check in STAGES[stage]:
        for expr, problem in check(fusion):
            raise InternalError(f"fusion is not well-formed ({stage}): {_place(expr)}{problem}")
    return fusion


def _place(expr: Expr | None) -> str:
    if expr is None:
        return ""
    operands = ", ".join(map(str, expr.inputs))
    return f"{expr.output} = {expr.op}({operands}) from {expr.origin}: "


# ---- values


def _ssa(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Every value is defined once, before its uses, under a unique id."""
    by_id: dict[int, Val] = {}
    defined: set[Val] = set()
    for value in fusion.inputs:
        if by_id.setdefault(value.id, value) != value or value in defined:
            yield None, f"two inputs have the id {value.id}: {by_id[value.id]} and {value}"
        if isinstance(value, Scalar) and value.value is not None:
            yield None, f"input {value} has a value and so cannot be an input"
        defined.add(value)
    for expr in fusion.exprs:
        for value in expr.inputs:
            known = by_id.setdefault(value.id, value)
            if known != value:
                yield expr, f"id {value.id} names two values: {known} and {value}"
            if value not in defined and (isinstance(value, TensorView) or value.value is None):
                yield expr, f"{value.name} is used before it is defined"
        if expr.output.id in by_id:
            yield expr, f"{expr.output.name} is defined already, as {by_id[expr.output.id]}"
        by_id[expr.output.id] = expr.output
        defined.add(expr.output)
    for tensor in fusion.results:
        if tensor not in defined:
            yield None, f"result {tensor} is not defined"


def _updates(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Updates write into distinct inputs of the same dtype and sizes."""
    targets: set[Val] = set()
    for update in fusion.updates:
        target, value = update.target, update.value
        if target not in fusion.inputs:
            yield None, f"{value.name} updates {target}, which is not an input"
        if target in targets:
            yield None, f"{target} is updated twice"
        targets.add(target)
        if value.dtype is not target.dtype or value.rank != target.rank:
            yield None, f"{value} cannot update {target}: dtype or rank differ"
        elif target.domain.is_static and value.domain.is_static and value.sizes != target.sizes:
            yield None, f"{value} cannot update {target}: sizes differ"


def _domains(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Logical dimensions follow from the root's, and the memory order is a permutation of them."""
    for value in fusion.inputs:
        if isinstance(value, TensorView):
            for problem in _domain_problems(value.domain):
                yield None, f"input {value}: {problem}"
    for expr in fusion.exprs:
        if isinstance(expr.output, TensorView):
            for problem in _domain_problems(expr.output.domain):
                yield expr, problem


def _domain_problems(domain: TensorDomain) -> Iterator[str]:
    for name, start, program, end in (
        ("transforms", domain.root, domain.transforms, domain.logical),
        ("loop", domain.logical, domain.loop, None),
    ):
        try:
            found = replay(start, program)
        except (FuserError, IndexError) as error:
            yield f"{name} do not apply: {error}"
        else:
            if end is not None and found != end:
                yield f"{name} give [{', '.join(map(str, found))}], not the logical domain"
    if sorted(domain.allocation) != list(range(domain.rank)):
        yield f"allocation {domain.allocation} is not a permutation of {domain.rank} dimensions"
    elif len(domain.contiguity) != domain.rank:
        yield f"{len(domain.contiguity)} contiguity flags for {domain.rank} dimensions"
    else:
        for k, dense in zip(domain.allocation, domain.contiguity, strict=True):
            if (dense is None) != domain.logical[k].is_broadcast:
                yield f"dimension {k} is {domain.logical[k]} but has contiguity {dense}"
    for dim in domain.logical:
        if dim.expanded is not None and not dim.is_broadcast:
            yield f"dimension {dim} is expanded but no broadcast"


# ---- expressions


def _pointwise(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Types follow the op's row, sizes follow broadcasting."""
    for expr in fusion.exprs:
        if not isinstance(expr, PointwiseOp):
            continue
        try:
            op = pointwise.lookup(expr.op)
            kinds = pointwise.operands_of(expr.inputs)
            op.common_dtype(kinds)
            if (
                op.rule is not pointwise.Rule.CAST
                and op.result_dtype(kinds) is not expr.output.dtype
            ):
                yield expr, f"its dtype should be {op.result_dtype(kinds)!r}"
        except FuserError as error:
            yield expr, str(error)
        tensors = [v for v in expr.inputs if isinstance(v, TensorView)]
        if isinstance(expr.output, Scalar):
            if tensors:
                yield expr, "tensors give a scalar"
            continue
        if not tensors:
            yield expr, "scalars give a tensor"
            continue
        if expr.output.rank != max(t.rank for t in tensors):
            yield expr, "its rank is not the largest of its operands'"
        for tensor in tensors:
            pairs = zip(
                reversed(tensor.domain.logical), reversed(expr.output.domain.logical), strict=False
            )
            for operand, result in pairs:
                sizes = {operand.size, result.size}
                known = all(isinstance(size, int) for size in sizes)
                if known and len(sizes) > 1 and operand != broadcast():
                    yield expr, f"{tensor.name} does not broadcast to the output"
                if result.is_broadcast and not operand.is_broadcast:
                    yield expr, f"{tensor.name} has elements where the output broadcasts"


VIEW_STEPS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "set": (),
        "segment_set": (),
        "stride_order": (),
        "permute": (Reorder,),
        "broadcast": (NewBroadcast,),
        "broadcast_in_dim": (NewBroadcast, Expand, Assume),
        "expand": (Expand, Assume),
        "squeeze": (Squeeze,),
        "reshape": (Squeeze, Merge, Split, NewBroadcast, Assume),
        "slice": (Resize, Split, Squeeze),
        "pad": (Resize,),
    }
)
"""Transforms that each view consists of as built."""


def _views(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """A view's root is its input's logical domain; elements and dtype are unchanged."""
    for expr in fusion.exprs:
        if isinstance(expr, ReductionOp):
            continue
        if not isinstance(expr, MoveOp):
            if isinstance(expr.output, TensorView) and expr.output.domain.transforms:
                yield expr, "only views, reductions and inputs have transforms"
            continue
        if expr.op not in VIEW_STEPS:
            yield expr, f"there is no view called {expr.op}"
        if expr.output.domain.root != expr.input.domain.logical:
            yield expr, "its root is not its input's logical domain"
        if expr.output.dtype is not expr.input.dtype:
            yield expr, "a view keeps the dtype"
        if isinstance(expr, PadOp) and expr.fill.dtype is not expr.output.dtype:
            yield expr, f"the fill value is {expr.fill.dtype!r}"
        if isinstance(expr, PadOp) and expr.fill.rank:
            yield expr, "the fill value must have no dimensions"
        if any(isinstance(step, Reduce) for step in expr.output.domain.transforms):
            yield expr, "a view folds nothing"


def _one_view_each(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """A view has the transforms of its name; set, segment_set and pad are no ViewOps."""
    for expr in fusion.exprs:
        if not isinstance(expr, MoveOp):
            continue
        for step in expr.output.domain.transforms:
            if not isinstance(step, VIEW_STEPS.get(expr.op, ())):
                yield expr, f"{step} is not part of a {expr.op}"
        if isinstance(expr, ViewOp) and expr.op in ("set", "segment_set", "pad"):
            yield expr, f"a {expr.op} is no view, but an operation of its own"


def _cats(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Sizes add up along the dimension and agree elsewhere."""
    for expr in fusion.exprs:
        if not isinstance(expr, CatOp):
            continue
        if not expr.inputs or not 0 <= expr.dim < expr.output.rank:
            yield expr, f"nothing to join along dimension {expr.dim}"
            continue
        if any(t.dtype is not expr.output.dtype for t in expr.inputs):
            yield expr, "its inputs have another dtype"
        if any(t.rank != expr.output.rank for t in expr.inputs):
            yield expr, "its inputs have another rank"
            continue
        for k, size in enumerate(expr.output.domain.shape):
            sizes = [t.domain.shape[k] for t in expr.inputs]
            if not all(isinstance(s, int) for s in (*sizes, size)):
                continue
            if k == expr.dim and sum(map(int, sizes)) != size:
                yield expr, f"inputs of {sizes} elements make {size} along dimension {k}"
            if k != expr.dim and set(sizes) != {size}:
                yield expr, f"sizes {sizes} of dimension {k} should all be {size}"


def _factories(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Scalar operands have the dtype of the resulting tensor."""
    for expr in fusion.exprs:
        if not isinstance(expr, (FullOp, IotaOp)):
            continue
        for value in expr.inputs:
            if value.dtype is not expr.output.dtype:
                yield expr, f"{value} should have the output's dtype"
            if value.rank:
                yield expr, f"{value} should have no dimensions"
        if isinstance(expr, IotaOp):
            if expr.output.rank != 1:
                yield expr, "an iota has one dimension"
            if expr.output.dtype is DataType.Bool or expr.output.dtype.is_complex:
                yield expr, "an iota counts in integers or floats"


def _randoms(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Seed and offset are integers, and parameters have the standard dtype."""
    for expr in fusion.exprs:
        if not isinstance(expr, RandomOp):
            continue
        try:
            random.lookup(expr.op).check(expr.output.dtype)
        except FuserError as error:
            yield expr, str(error)
            continue
        wide = random.standard_dtype(expr.output.dtype)
        for value, wanted in zip(
            expr.inputs, (DataType.Int, DataType.Int, wide, wide), strict=True
        ):
            if value.dtype is not wanted:
                yield expr, f"{value} should be {wanted!r}"
            if value.rank:
                yield expr, f"{value} should have no dimensions"


def _reductions(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Whole dimensions of the input are reduced, in the accumulation dtype of the op's row."""
    for expr in fusion.exprs:
        if not isinstance(expr, ReductionOp):
            continue
        domain, dtype = expr.output.domain, expr.output.dtype
        if domain.root != expr.input.domain.logical:
            yield expr, "its root is not its input's logical domain"
        steps = [step for step in domain.transforms if isinstance(step, Reduce)]
        if len(steps) < len(domain.transforms):
            yield expr, "a reduction folds dimensions and does nothing else"
        elif any(a.axis <= b.axis for a, b in pairwise(steps)):
            yield expr, "dimensions are folded from the last to the first, each of them once"
        if expr.input.rank and not steps:
            yield expr, "it folds no dimension"
        try:
            row = reductions.lookup(expr.op)
            inferred = row.result_dtype(expr.input.dtype)
        except FuserError as error:
            yield expr, str(error)
            continue
        if not row.takes_dtype and dtype is not inferred:
            yield expr, f"its dtype should be {inferred!r}"
        accumulate = row.accumulate_dtype(expr.input.dtype, dtype)
        if expr.accumulate is not accumulate:
            yield expr, f"it should accumulate in {accumulate!r}"
        if dtype.is_reduced_precision and dtype is not expr.input.dtype:
            yield expr, f"its elements should be converted to {dtype!r} first"
        if not row.of_empty and any(expr.input.domain.shape[k] == 0 for k in expr.dims):
            yield expr, f"there is no {expr.op} of nothing"


def _scans(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """The result has the input's sizes, and is accumulated in the dtype of the op's row."""
    for expr in fusion.exprs:
        if not isinstance(expr, ScanOp):
            continue
        dtype, domain = expr.output.dtype, expr.output.domain
        if domain.shape != expr.input.domain.shape:
            yield expr, "it should have the sizes of its input"
        if not 0 <= expr.dim < expr.input.rank:
            yield expr, f"there is no dimension {expr.dim}"
        elif domain.logical[expr.dim].expanded not in (None, 1):
            yield expr, "sums of equal elements differ: the dimension is no broadcast one"
        try:
            row = scans.lookup(expr.op)
            row.check(expr.input.dtype, dtype)
        except FuserError as error:
            yield expr, str(error)
            continue
        accumulate = row.accumulate_dtype(expr.input.dtype, dtype)
        if expr.accumulate is not accumulate:
            yield expr, f"it should accumulate in {accumulate!r}"
        if dtype.is_reduced_precision and dtype is not expr.input.dtype:
            yield expr, f"its elements should be converted to {dtype!r} first"


def _gathers(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """The result has the dimensions that follow from input and index."""
    for expr in fusion.exprs:
        if not isinstance(expr, GatherOp):
            continue
        try:
            dims = gathered_dims(indexing.lookup(expr.op), expr.input, expr.dim, expr.index)
        except FuserError as error:
            yield expr, str(error)
            continue
        if expr.output.domain.logical != dims:
            yield expr, f"its dimensions should be [{', '.join(map(str, dims))}]"
        if expr.output.dtype is not expr.input.dtype:
            yield expr, "it changes no element, and so no dtype"


def _calls(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """Results have the sizes and dtypes of the row; those of one call have one operation."""
    for results in fusion.calls().values():
        first = results[0]
        if len({expr.result for expr in results}) < len(results):
            yield first, "two results of a call are the same one"
        for expr in results:
            same = (expr.op, expr.inputs, expr.parameters, expr.attributes)
            if same != (first.op, first.inputs, first.parameters, first.attributes):
                yield expr, f"{first.output.name} is of the same call, and another operation"
            operands = {
                name: Shaped(t.domain.shape, t.dtype)
                for name, t in zip(expr.parameters, expr.inputs, strict=True)
            }
            try:
                made = opaque.lookup(expr.op).check(operands, dict(expr.attributes))[expr.result]
            except (FuserError, IndexError) as error:
                yield expr, str(error)
                continue
            shape = tuple(map(constant_if_known, made.shape))
            if expr.output.domain.shape != shape or expr.output.dtype is not made.dtype:
                yield expr, f"it should be {made.dtype!r} of sizes {shape_text(shape)}"


def _static(fusion: Fusion) -> Iterator[tuple[Expr | None, str]]:
    """All sizes are known."""
    for value in fusion.inputs:
        if isinstance(value, TensorView) and not value.domain.is_static:
            yield None, f"input {value} has a symbolic size"
    for expr in fusion.exprs:
        if isinstance(expr.output, TensorView) and not expr.output.domain.is_static:
            yield expr, "a size is symbolic"
        for value in expr.inputs:
            if isinstance(value, Scalar) and isinstance(value.value, Form):
                yield expr, f"{value} is symbolic"


_ALWAYS: tuple[Check, ...] = (
    _ssa,
    _updates,
    _domains,
    _views,
    _cats,
    _factories,
    _randoms,
    _reductions,
    _scans,
    _gathers,
    _calls,
    _pointwise,
)

STAGES: Mapping[str, tuple[Check, ...]] = MappingProxyType(
    {
        "built": (*_ALWAYS, _one_view_each),
        "specialised": (*_ALWAYS, _one_view_each, _static),
        "folded": (*_ALWAYS, _static),
    }
)
"""Checks of each stage."""
