"""A Fusion as Python: a function that, called with a FusionDefinition, builds an equal Fusion.

The text is shown to users, contained in reproduction scripts, and, with values numbered in order of
appearance, the canonical form behind `equal` and `structural_hash`: two fusions are the same
program iff their canonical texts are equal. So everything that changes a result is printed, and
names, ids and origins are not.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Container, Mapping, Sequence

from thunder_fuser.errors import InternalError
from thunder_fuser.ir.domain import Extent, Transform
from thunder_fuser.ir.dtypes import DataType, Number, of_number
from thunder_fuser.ir.fusion import (
    CatOp,
    CopyOp,
    CutOp,
    Expr,
    FullOp,
    Fusion,
    GatherOp,
    IotaOp,
    MoveOp,
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
from thunder_fuser.ir.integer.symint import Digit, Form, Opaque, Variable
from thunder_fuser.ir.symbolic import variable_of
from thunder_fuser.ir.tables import opaque, random, reductions, scans
from thunder_fuser.ir.tables.opaque import Attribute
from thunder_fuser.ir.view_arguments import (
    Argument,
    stride_order_of,
    transform_fields,
    view_arguments,
)

HEADER = "def nvfuser_fusion(fd : FusionDefinition) -> None :"


def to_python(fusion: Fusion) -> str:
    """The function's source, ending in a newline. Values keep their names."""
    return _Printer(fusion, canonical=False).text()


def structural_hash(fusion: Fusion) -> str:
    """SHA-256 (hex) of the canonical text: equal for equal programs, whatever the names."""
    return hashlib.sha256(_canonical(fusion).encode()).hexdigest()


def equal(a: Fusion, b: Fusion) -> bool:
    """True if two fusions are the same program up to names."""
    return _canonical(a) == _canonical(b)


def _canonical(fusion: Fusion) -> str:
    return _Printer(fusion, canonical=True).text()


def number_text(value: Number) -> str:
    """A Python expression with exactly this value."""
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


class _Printer:
    """Printer state: lines, and the names of the values printed so far."""

    def __init__(self, fusion: Fusion, *, canonical: bool) -> None:
        self._fusion = fusion
        self._lines: list[str] = []
        self._names: dict[Val, str] = {}
        self._variables: dict[str, str] = {}
        self._sizes: dict[Form, str] = {}
        self._numbers = itertools.count() if canonical else None
        self._unnamed: Sequence[Val] = self._offsets()

    def text(self) -> str:
        unnamed = self._fusion.drawn if self._unnamed else ()
        for value in self._fusion.inputs:
            if value not in unnamed:
                self._input(value)
        calls = self._fusion.calls()
        read = {v for expr in self._fusion.exprs for v in expr.inputs} | {*self._fusion.results}
        for expr in self._fusion.exprs:
            if not isinstance(expr, OpaqueOp):
                self._define(expr.output, self._call(expr))
            elif results := calls.pop(expr.call, ()):
                self._torch_call(results, read)
        for output in self._fusion.outputs:
            self._lines.append(f"fd.add_output({self._names[output]})")
        for update in self._fusion.updates:
            new, target = self._names[update.value], self._names[update.target]
            self._lines.append(f"fd.add_output({new}, alias_input={target})")
        return "\n".join([HEADER, *(f"    {line}" for line in self._lines or ["pass"]), ""])

    def _offsets(self) -> Sequence[Val]:
        """The drawn offsets, if reading the text without them draws the same ones; else none."""
        seed, *offsets = self._fusion.drawn or (None,)
        drawing = [
            e.offset for e in self._fusion.exprs if isinstance(e, RandomOp) if e.seed is seed
        ]
        return offsets if drawing == offsets else ()

    def _torch_call(self, results: Sequence[OpaqueOp], read: Container[Val]) -> None:
        """All results of one call; those that are never read are named `_`."""
        count = len(opaque.lookup(results[0].op).names)
        names = ["_"] * count
        for expr in results:
            if expr.output in read:
                names[expr.result] = self._named(expr.output)
        self._lines.append(f"{', '.join(names)} = {self._call(results[0])}")

    def _define(self, value: Val, expression: str) -> str:
        name = self._named(value)
        self._lines.append(f"{name} = {expression}")
        return name

    def _named(self, value: Val) -> str:
        number = value.id if self._numbers is None else next(self._numbers)
        name = f"{value.name[0]}{number}"
        self._names[value] = name
        if isinstance(value, TensorView):
            for k, extent in enumerate(value.domain.shape):
                if isinstance(extent, Form):
                    self._sizes.setdefault(extent, f"{name}.size({k})")
        return name

    # ---- inputs

    def _input(self, value: Val) -> None:
        if isinstance(value, Scalar):
            name = self._define(value, f"fd.define_scalar(None, dtype={value.dtype!r})")
            self._variables[value.name] = name
            return
        domain = value.domain
        arguments = {"shape": self._list([self._unknown(d.size) for d in domain.root])}
        if domain.transforms:
            # The tensor has the root's sizes: contiguity and stride_order are the logical
            # dimensions'.
            arguments["expanded"] = str([d.expanded is not None for d in domain.root])
            arguments["transforms"] = self._program(domain.transforms)
        arguments["contiguity"] = str(list(domain.contiguity))
        arguments["dtype"] = repr(value.dtype)
        arguments["is_cpu"] = str(value.is_cpu)
        arguments["stride_order"] = str(stride_order_of(domain.allocation))
        name = self._define(value, f"fd.define_tensor({_keywords(arguments)})")
        for k, extent in enumerate(domain.shape):
            variable = variable_of(extent)
            if variable is not None:
                self._variables.setdefault(variable.name, f"{name}.size({k})")

    def _unknown(self, extent: Extent) -> Extent:
        """-1 for a size of which this input is the first occurrence; else the size."""
        variable = variable_of(extent)
        return extent if variable is None or variable.name in self._variables else -1

    # ---- expressions

    def _call(self, expr: Expr) -> str:
        match expr:
            case PointwiseOp("cast", (x,)):
                return f"fd.ops.cast({self._value(x)}, dtype={expr.output.dtype!r})"
            case PointwiseOp():
                return f"fd.ops.{expr.op}({', '.join(map(self._value, expr.inputs))})"
            case ViewOp() | CopyOp() | CutOp() | PadOp():
                return self._view(expr)
            case CatOp():
                operands = ", ".join(map(self._value, expr.inputs))
                return f"fd.ops.cat([{operands}], dim={expr.dim})"
            case FullOp():
                return self._full(expr)
            case ReductionOp():
                arguments = [self._value(expr.input), *self._folded(expr)]
                return f"fd.ops.{expr.op}({', '.join(arguments)})"
            case ScanOp():
                inferred = scans.lookup(expr.op).result_dtype(expr.input.dtype)
                dtype = DataType.Null if inferred is expr.output.dtype else expr.output.dtype
                shown = _keywords({"dim": str(expr.dim), "dtype": repr(dtype)})
                return f"fd.ops.{expr.op}({self._value(expr.input)}, {shown})"
            case GatherOp("embedding_fwd"):
                return f"fd.ops.embedding_fwd({self._value(expr.index)}, {self._value(expr.input)})"
            case GatherOp():
                operands = f"{self._value(expr.input)}, {self._value(expr.index)}"
                return f"fd.ops.{expr.op}({operands}, dim={expr.dim})"
            case RandomOp():
                return f"fd.ops.{expr.op}({_keywords(self._drawn(expr))})"
            case OpaqueOp():
                named = dict(zip(expr.parameters, map(self._value, expr.inputs), strict=True))
                named |= {name: _constant(value) for name, value in expr.attributes}
                return f"fd.ops.{expr.op}({_keywords(named)})"
            case IotaOp():
                return self._iota(expr)

    def _full(self, expr: FullOp) -> str:
        dtype = expr.output.dtype
        arguments = {
            "shape": self._list(expr.output.domain.shape),
            "fill_value": self._converted(expr.fill, dtype),
            "dtype": repr(dtype),
        }
        return f"fd.ops.full({_keywords(arguments)})"

    def _iota(self, expr: IotaOp) -> str:
        (length,), dtype = expr.output.domain.shape, expr.output.dtype
        arguments = {
            "start": self._converted(expr.start, dtype),
            "step": self._converted(expr.step, dtype),
            "dtype": repr(dtype),
        }
        return f"fd.ops.iota({self._extent(length)}, {_keywords(arguments)})"

    def _drawn(self, expr: RandomOp) -> dict[str, str]:
        names, wide = random.lookup(expr.op).parameters, random.standard_dtype(expr.output.dtype)
        shown = {
            name: self._converted(value, wide)
            for name, value in zip(names, expr.parameters, strict=True)
        }
        shown["shape"] = self._list(expr.output.domain.shape)
        if expr.offset not in self._unnamed:
            shown["rng_seed"] = self._value(expr.seed)
            shown["rng_offset"] = self._value(expr.offset)
        return shown | {"dtype": repr(expr.output.dtype)}

    def _folded(self, expr: ReductionOp) -> list[str]:
        inferred = reductions.lookup(expr.op).result_dtype(expr.input.dtype)
        dtype = DataType.Null if inferred is expr.output.dtype else expr.output.dtype
        shown = {"dims": str(list(expr.dims)), "keepdim": "False", "dtype": repr(dtype)}
        return _pairs(shown)

    def _view(self, expr: MoveOp) -> str:
        domain = expr.output.domain
        natural = view_arguments(expr)
        if natural is not None:
            shown = {key: self._argument(value, expr) for key, value in natural.items()}
            return f"fd.ops.{expr.op}({', '.join([self._value(expr.input), *_pairs(shown)])})"
        shown = {"op": repr(expr.op), "transforms": self._program(domain.transforms)}
        if isinstance(expr, PadOp):
            shown["value"] = self._converted(expr.fill, expr.output.dtype)
        shown["stride_order"] = str(stride_order_of(domain.allocation))
        return f"fd.ops.view({', '.join([self._value(expr.input), *_pairs(shown)])})"

    def _argument(self, value: Argument, expr: MoveOp) -> str:
        if isinstance(value, (TensorView, Scalar)):
            return self._converted(value, expr.output.dtype)
        if isinstance(value, bool):
            return str(value)
        return self._extent(value) if isinstance(value, (int, Form)) else self._list(value)

    def _program(self, transforms: Sequence[Transform]) -> str:
        steps = []
        for step in transforms:
            word, numbers = transform_fields(step)
            shown = [
                self._extent(x) if isinstance(x, (int, Form)) else self._list(x) for x in numbers
            ]
            steps.append(f"({', '.join([repr(word), *shown])})")
        return f"[{', '.join(steps)}]"

    # ---- values

    def _value(self, value: Val) -> str:
        """An operand: a name, or a literal where that means the same."""
        if isinstance(value, TensorView) or value.value is None:
            return self._names[value]
        if isinstance(value.value, Form):
            text, literal = self._form(value.value), DataType.Int
        else:
            text, literal = number_text(value.value), of_number(value.value)
        if value.dtype is literal and not self._has_numbers(value.value):
            return text
        return f"fd.define_scalar({text}, dtype={value.dtype!r})"

    def _has_numbers(self, value: Number | Form) -> bool:
        """True if a size depends on a scalar input: written as arithmetic it would be computed."""
        if not isinstance(value, Form):
            return False
        names = {v.name for v in self._fusion.inputs if isinstance(v, Scalar)}
        return any(v.name in names for v in value.variables())

    def _converted(self, value: Val, dtype: DataType) -> str:
        """An operand that the op converts to `dtype` anyway, so that any literal will do."""
        constant = None if isinstance(value, TensorView) else value.value
        if constant is None or isinstance(constant, Form) or value.dtype is not dtype:
            return self._value(value)
        return number_text(constant)

    def _list(self, extents: Sequence[Extent]) -> str:
        return f"[{', '.join(map(self._extent, extents))}]"

    def _extent(self, extent: Extent) -> str:
        return self._form(extent) if isinstance(extent, Form) else str(extent)

    def _form(self, form: Form) -> str:
        """Arithmetic on named sizes; terms are sorted, because forms are ordered by creation."""
        if form in self._sizes and variable_of(form) is None:
            return self._sizes[form]
        terms = []
        for digit, coef in form.terms:
            least = self._smallest(digit) if coef < 0 else None
            text, coef = (self._digit(digit), coef) if least is None else (least, -coef)
            terms.append(text if coef == 1 else f"{coef} * {_grouped(text)}")
        terms.sort()
        if form.const or not terms:
            terms.append(str(form.const))
        return " + ".join(terms).replace(" + -", " - ")

    def _digit(self, digit: Digit) -> str:
        text = self._base(digit.base)
        if digit.s == 1 and digit.e is None:
            return text
        over = f"{_grouped(text)} // {digit.s}" if digit.s > 1 else _grouped(text)
        return over if digit.e is None else f"{over} % {digit.e}"

    def _smallest(self, digit: Digit) -> str | None:
        """A minimum of several as text, if the negated digit is one; else None."""
        base = digit.base
        if digit.s != 1 or digit.e is not None or not isinstance(base, Opaque) or base.op != "max":
            return None
        return self._chosen("minimum", [-x for x in base.operands])

    def _chosen(self, op: str, forms: Sequence[Form]) -> str:
        first, *others = sorted(self._form(x) for x in forms)
        for other in others:
            first = f"fd.ops.{op}({first}, {other})"
        return first

    def _base(self, base: Variable | Opaque | Form) -> str:
        match base:
            case Variable():
                if base.name not in self._variables:
                    raise InternalError(f"no value that is printed has the size {base.name}")
                return self._variables[base.name]
            case Opaque():
                if base.op == "max":
                    return self._chosen("maximum", base.operands)
                operands = [_grouped(self._form(x)) for x in base.operands]
                if base.op == "*":
                    operands.sort()
                return f" {base.op} ".join(operands)
            case Form():
                return self._form(base)


def _constant(value: Attribute) -> str:
    return number_text(value) if isinstance(value, int | float) else repr(value)


def _grouped(text: str) -> str:
    """In parentheses, unless it is a name, a number or a single call."""
    return f"({text})" if " " in re.sub(r"\([^()]*\)", "", text) else text


def _pairs(arguments: Mapping[str, str]) -> list[str]:
    return [f"{key}={text}" for key, text in arguments.items()]


def _keywords(arguments: Mapping[str, str]) -> str:
    return ", ".join(_pairs(arguments))
