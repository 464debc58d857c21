"""Open sizes: planning a definition with symbolic sizes at representative values.

The size equations of the fusion (`ir/size_equations.py`) are solved. The free sizes are named i0,
i1, ... in order of the inputs, and each gets a representative value: large, as in programs worth
fusing, and different from every other size, so that unrelated sizes do not compare equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count as counting

from thunder_fuser.device import DeviceInfo
from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.domain import Extent
from thunder_fuser.ir.fusion import Fusion, Scalar, TensorView
from thunder_fuser.ir.integer.counts import SMALLEST, conditions, count, without_implied
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.ir.rebuild import rebound
from thunder_fuser.ir.size_equations import Equation, Side, Solution, equations
from thunder_fuser.ir.symbolic import size_variables, variable_of, variables_by_name
from thunder_fuser.runtime.binding.sizes import check_agreement
from thunder_fuser.segment.plan import OpenSizes, SegmentedFusion
from thunder_fuser.segment.planner import Optimise, partition_after

_STEP = 256
_FIRST = 8
"""Representative sizes are multiples of 256 from 2048 on: large and as divisible as usual sizes."""
_ROUND = (1024, 2304, 3840, 4096, 5376, 512, 8192, 720, 256, 64, 16, 4, 2)
"""Values to try if equations between products rule out the default representative sizes."""


def plan_open(
    fusion: Fusion,
    optimise: Optimise,
    device: DeviceInfo,
    wanted: Mapping[str, int] | None = None,
) -> SegmentedFusion:
    """Plan a fusion with open sizes at representative values, which carry their formulas.

    `wanted` are values for some of the sizes, by name. Raises FuserValueError if no values are
    found that satisfy the definition and `wanted`.
    """
    solution = Solution()
    solution.add(equations(fusion))
    known = {name: solution.of(form) for name, form in size_variables(fusion).items()}
    free = dict.fromkeys(v.name for form in known.values() for v in variables_by_name(form))
    names = [f"i{k}" for k in range(len(free))]
    context = Context()
    renamed = {old: context.var(new, SMALLEST, None) for old, new in zip(free, names, strict=True)}
    known = {name: context.lift(form.evaluate(renamed)) for name, form in known.items()}
    values = _values(fusion, known, names, dict(wanted or {}))
    others = [name for name in names if name not in (wanted or {})]
    sizes = [n.evaluate(known) for n in _symbolic(fusion)]
    values = _fitted(solution.left, known, sizes, values, others)
    check_agreement(fusion, {name: form.evaluate(values) for name, form in known.items()})
    counts = {name: count(form, values) for name, form in known.items()}
    bound = rebound(fusion, lambda extent: _counted(extent, counts))
    if not values:
        return partition_after(optimise, bound, None, device)
    with conditions() as assumed:
        for equation in solution.left:
            sides = [_counted(side.extent, counts) for side in _extents(equation)]
            assert sides[0] == sides[1]
        for extent in _symbolic(fusion):
            _counted(extent, counts)
    plan = partition_after(optimise, bound, None, device)
    holding = without_implied([*plan.conditions, *assumed])
    places = _named(_places(fusion, plan.fusion), known, values)
    return replace(plan, sizes=OpenSizes(places, values), conditions=holding)


def _counted(extent: Extent, counts: Mapping[str, int]) -> Extent:
    """Evaluate an extent to a count. Comparisons, as in a maximum, are recorded as conditions."""
    return extent.evaluate(counts) if isinstance(extent, Form) else extent


def _in_terms_of(known: Mapping[str, Form], extent: Extent) -> Extent:
    """Rewrite an extent as a form of free sizes."""
    return extent.evaluate(known) if isinstance(extent, Form) else extent


def _symbolic(fusion: Fusion) -> list[Form]:
    """Distinct symbolic sizes of the tensors of a fusion."""
    domains = [v.domain for v in fusion.values() if isinstance(v, TensorView)]
    found = [n for domain in domains for n in domain.shape if isinstance(n, Form)]
    return list(dict.fromkeys(found))


def _values(
    fusion: Fusion,
    known: Mapping[str, Form],
    names: Sequence[str],
    wanted: Mapping[str, int],
) -> dict[str, int]:
    """Choose representative values: those in `wanted`, and distinct defaults for the others."""
    for name, value in wanted.items():
        if name not in names:
            has = ", ".join(names) or "none that is open"
            raise FuserValueError(
                f"sizes: {name} is no size of this definition; it has {has}: name one of these, or "
                "leave sizes out"
            )
        if value < SMALLEST:
            raise FuserValueError(
                f"sizes: {name} is {value}; formulas are for sizes of at least {SMALLEST}: pass "
                "inputs (fake tensors will do) for a smaller one"
            )
    domains = [v.domain for v in fusion.values() if isinstance(v, TensorView)]
    taken = {n for domain in domains for n in domain.shape if isinstance(n, int)}
    taken |= set(wanted.values())
    others = (n for n in counting(_FIRST * _STEP, _STEP) if n not in taken)
    units = {name: _unit(name, known) for name in names}
    return {
        name: wanted[name] if name in wanted else max(next(others) // units[name], SMALLEST)
        for name in names
    }


def _unit(name: str, known: Mapping[str, Form]) -> int:
    """Largest factor k of a dimension k * name, by which the size's default value is divided so
    that the dimension is as large as others; 1 if there is none.
    """
    return max((factor for p in known.values() if (factor := _factor(p, name))), default=1)


def _factor(form: Form, name: str) -> int:
    """Return k if `form` is k * name, else 0."""
    size = form.context.var(name, SMALLEST, None)
    factor = form.coefficient(size) or 0
    return factor if form.equals(size * factor) else 0


def _fitted(
    equations: Sequence[Equation],
    known: Mapping[str, Form],
    sizes: Sequence[Form],
    values: dict[str, int],
    names: Sequence[str],
) -> dict[str, int]:
    """Find values close to `values` that satisfy all equations and leave no tensor empty; only
    `names` may change. FuserValueError if none are found.
    """
    differences: list[Form] = []
    for left, right in map(_extents, equations):
        difference = _in_terms_of(known, left.extent) - _in_terms_of(known, right.extent)
        assert isinstance(difference, Form)
        differences.append(difference)

    def fit(tried: Mapping[str, int]) -> bool:
        return not any(d.evaluate(tried) for d in differences) and all(
            n.evaluate(tried) > 0 for n in sizes
        )

    if not differences or fit(values):
        return values
    for moved in reversed(names):
        for value in (values[moved], *_ROUND):
            tried = values | {moved: value}
            if fit(tried):
                return tried
            for name in reversed(names):
                found = {n for d in differences for n in _root(d, name, tried)}
                for root in sorted(found):
                    if fit(tried | {name: root}):
                        return tried | {name: root}
    wrong = [e for e, d in zip(equations, differences, strict=True) if d.evaluate(values)]
    failed = [*wrong, *equations][0]
    raise FuserValueError(
        f"{failed.place}: the sizes of the inputs that make {failed.left} ({failed.left.extent}) "
        f"and {failed.right} ({failed.right.extent}) one size cannot be told from the definition; "
        "pass inputs (fake tensors will do)"
    )


def _root(difference: Form, name: str, values: Mapping[str, int]) -> Iterator[int]:
    """Yield the root of `difference`, if linear in the size `name`, that is a valid size."""
    at_0, at_1 = (difference.evaluate({**values, name: n}) for n in (0, 1))
    if at_0 != at_1 and at_0 % (at_0 - at_1) == 0 and at_0 // (at_0 - at_1) >= SMALLEST:
        yield at_0 // (at_0 - at_1)


def _extents(equation: Equation) -> tuple[Side, Side]:
    return equation.left, equation.right


def _places(fusion: Fusion, planned: Fusion) -> Iterator[tuple[str, str]]:
    """Yield the size variables of inputs, each with its place in the names of the plan."""
    variables = size_variables(fusion)
    for value, shown in zip(fusion.inputs, planned.inputs, strict=True):
        if isinstance(value, Scalar):
            if value.name in variables:
                yield value.name, shown.name
            continue
        for k, dim in enumerate(value.domain.root):
            variable = variable_of(dim.size)
            if variable is not None:
                yield variable.name, f"{shown.name}.size({k})"


def _named(
    found: Iterable[tuple[str, str]], known: Mapping[str, Form], values: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Dimensions of inputs that equal each free size, or are a multiple of it, by size name."""
    places: dict[str, tuple[str, ...]] = dict.fromkeys(values, ())
    for variable, place in found:
        for name in (v.name for v in variables_by_name(known[variable])):
            factor = _factor(known[variable], name)
            if factor:
                places[name] += (place if factor == 1 else f"{place} // {factor}",)
    return places
