"""Checks of the structure of a Fusion: SSA form, in-place updates, domains."""

from __future__ import annotations

from collections.abc import Iterator

from thunder_fuser.errors import FuserError
from thunder_fuser.ir.domain import TensorDomain, replay
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView, Val
from thunder_fuser.ir.integer.symint import Form
from thunder_fuser.ir.verify.check import Violation


def ssa(fusion: Fusion) -> Iterator[Violation]:
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


def updates(fusion: Fusion) -> Iterator[Violation]:
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


def domains(fusion: Fusion) -> Iterator[Violation]:
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
    try:
        found = replay(domain.root, domain.transforms)
    except (FuserError, IndexError) as error:
        yield f"transforms do not apply: {error}"
    else:
        if found != domain.logical:
            yield f"transforms give [{', '.join(map(str, found))}], not the logical domain"
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


def static(fusion: Fusion) -> Iterator[Violation]:
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
