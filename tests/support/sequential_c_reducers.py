"""What reductions carry along, in C: a number, a number and its place, moments, exponentials.

Structs have as many words as the compiler's, since it says how much memory they take, and formulas
of their own: Welford's update element by element, sums of exponentials as they are defined.
"""

from __future__ import annotations

from tests.support.sequential_c_tables import Unprintable, ctype
from thunder_fuser import kernel_ir as ir
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import reductions

_LARGER, _SMALLER = "(b > a) | (b != b) ? b : a", "(b < a) | (b != b) ? b : a"
NUMBERS = {
    "sum": "a + b",
    "prod": "a * b",
    "max": _LARGER,
    "min": _SMALLER,
    "any": _LARGER,
    "all": _SMALLER,
    "xor_sum": "a ^ b",
}
"""Reductions whose accumulator is a number."""
_PLACED = """\
static {tag} combine_{name}({tag} a, {tag} b) {{
  int above = a.value {than} b.value || (a.value != a.value && b.value == b.value);
  int equal = a.value == b.value || (a.value != a.value && b.value != b.value);
  return above || (equal && a.position < b.position) ? a : b;
}}
static {tag} take_{name}({tag} a, {T} x, {P} position) {{
  return combine_{name}(a, ({tag}){{x, position}});
}}
"""
_MOMENTS = """\
static {tag} combine_{name}({tag} a, {tag} b) {{
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  {T} count = a.count + b.count, apart = b.mean - a.mean;
  {T} squares = a.squares + b.squares + apart * apart * (a.count * (b.count / count));
  return ({tag}){{count, a.mean + apart * (b.count / count), squares, 0}};
}}
static {tag} take_{name}({tag} a, {T} x) {{
  {T} count = a.count + 1, apart = x - a.mean, mean = a.mean + apart / count;
  return ({tag}){{count, mean, a.squares + apart * (x - mean), 0}};
}}
"""
_EXPONENTIALS = """\
static {T} origin_{name}({T} largest) {{ return largest - largest == 0 ? largest : 0; }}
static {tag} combine_{name}({tag} a, {tag} b) {{
  {T} largest = a.largest > b.largest ? a.largest : b.largest, from = origin_{name}(largest);
  return ({tag}){{largest, a.sum * exp(a.largest - from) + b.sum * exp(b.largest - from)}};
}}
static {tag} take_{name}({tag} a, {T} x) {{
  {T} largest = x > a.largest ? x : a.largest, from = origin_{name}(largest);
  return ({tag}){{largest, a.sum * exp(a.largest - from) + exp(x - from)}};
}}
"""


def element(reducer: ir.Reducer) -> str:
    """The type that elements are folded in."""
    return ctype(reducer.element)


def type_of(reducer: ir.Reducer) -> str:
    """The type of what is carried along."""
    row = reductions.lookup(reducer.op).accumulator
    T = element(reducer).replace(" ", "_")
    if row.is_number:
        return element(reducer)
    if row is reductions.PLACED:
        assert reducer.position is not None
        return f"placed_{T}_{ctype(reducer.position).replace(' ', '_')}"
    return f"{'moments' if row is reductions.MOMENTS else 'exponentials'}_{T}"


def name_of(reducer: ir.Reducer) -> str:
    """Of its functions: combine_NAME, take_NAME."""
    return f"{reducer.op}_{type_of(reducer).replace(' ', '_')}"


def type_text(reducer: ir.Reducer) -> str:
    """The definition of the type, where it is a struct."""
    row, tag, T = reductions.lookup(reducer.op).accumulator, type_of(reducer), element(reducer)
    if row.is_number:
        return ""
    if row is reductions.PLACED:
        assert reducer.position is not None
        return f"typedef struct {{ {T} value; {ctype(reducer.position)} position; }} {tag};\n"
    fields = "count, mean, squares, unused" if row is reductions.MOMENTS else "largest, sum"
    return f"typedef struct {{ {T} {fields}; }} {tag};\n"


def functions(reducer: ir.Reducer) -> str:
    row, tag, T = reductions.lookup(reducer.op).accumulator, type_of(reducer), element(reducer)
    name = name_of(reducer)
    if row.is_number:
        both = f"static {T} combine_{name}({T} a, {T} b) {{ return {NUMBERS[reducer.op]}; }}\n"
        return f"{both}static {T} take_{name}({T} a, {T} b) {{ return combine_{name}(a, b); }}\n"
    if row is reductions.PLACED:
        assert reducer.position is not None
        than = ">" if reducer.op == "argmax" else "<"
        return _PLACED.format(tag=tag, name=name, than=than, T=T, P=ctype(reducer.position))
    text = _MOMENTS if row is reductions.MOMENTS else _EXPONENTIALS
    return text.format(tag=tag, name=name, T=T)


def start(reducer: ir.Reducer) -> str:
    """An accumulator that has seen nothing."""
    row = reductions.lookup(reducer.op)
    tag, identity = type_of(reducer), number(row.identity(reducer.accumulate), reducer.element)
    if row.accumulator.is_number:
        return identity
    if row.accumulator is reductions.PLACED:
        assert reducer.position is not None
        behind = (1 << (8 * reducer.position.itemsize - 1)) - 1
        return f"(({tag}){{{identity}, {behind}}})"
    return (
        f"(({tag}){{0}})"
        if row.accumulator is reductions.MOMENTS
        else f"(({tag}){{{identity}, 0}})"
    )


def finish(reducer: ir.Reducer, text: str) -> str:
    """The result of what has been seen."""
    row = reductions.lookup(reducer.op).accumulator
    if row is reductions.PLACED:
        return f"(long long)({text}).position"
    if row is reductions.MOMENTS:
        return f"({text}).squares"
    if row is reductions.EXPONENTIALS:
        return f"({{ __auto_type e_ = {text}; e_.sum + (e_.largest - e_.largest); }})"
    if row is reductions.SUM and reducer.accumulate.is_floating:
        return f"({text} + 0)"
    return f"({text})"


def number(value: object, dtype: DataType) -> str:
    """A constant in a type that computes."""
    if dtype.is_complex or isinstance(value, complex):
        raise Unprintable("no C for complex numbers")
    assert isinstance(value, (int, float))
    if not dtype.is_floating:
        bits = 8 * dtype.itemsize if dtype is not DataType.Bool else 64
        wrapped = (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        suffix = "ll" if bits == 64 else ""
        lowest = wrapped == -(1 << (bits - 1))
        text = f"{wrapped + 1}{suffix} - 1" if lowest else f"{wrapped}{suffix}"
        return f"({ctype(dtype)})({text})"
    found = float(value)
    text = "NAN" if found != found else repr(found).replace("inf", "(double)INFINITY")
    return f"({ctype(dtype)})({text})"
