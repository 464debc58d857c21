"""Index arithmetic of forms: run at every point as C, divisions counted, Int32 or Int."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from thunder_fuser import kernel_ir as ir
from thunder_fuser.codegen.cuda_statements import CudaText
from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.integer.symint import Context, Form
from thunder_fuser.lower.index.index_arithmetic import IndexArithmetic, fits

ZERO = ir.Int(0)
EXTENTS = {"x": 7, "y": 6, "z": 5}
POINTS = list(itertools.product(*map(range, EXTENTS.values())))


class Emitter:
    """Index arithmetic and its text."""

    def __init__(
        self,
        dtype: DataType = DataType.Int32,
        prefix: str = "i",
        indices: IndexArithmetic | None = None,
    ) -> None:
        self._dtype = dtype
        self._printer = CudaText(dtype)
        self._indices = indices or IndexArithmetic(dtype, prefix)

    def child(self) -> Emitter:
        return Emitter(self._dtype, indices=self._indices.child())

    @property
    def statements(self) -> list[str]:
        return self._printer.body(tuple(self._indices.statements))

    def emit(self, form: Form, names: dict[str, ir.Expr] | None = None) -> str:
        return self._printer.text(self._indices.value(form, names))

    def emit_all(self, forms: list[Form], names: dict[str, ir.Expr] | None = None) -> list[str]:
        return [self._printer.text(e) for e in self._indices.values(forms, names)]


def random_forms(seed: int, context: Context) -> list[Form]:
    """Three forms over x, y and z that share digits, as the addresses of a kernel do."""
    rng = random.Random(seed)
    x, y, z = (context.var(name, 0, n - 1) for name, n in EXTENTS.items())
    m = context.var("x", 0, EXTENTS["x"] - 1) + 1  # a divisor that is not a constant
    pool = [x, y, z, 6 * x + y, 5 * y + z, 30 * x + 5 * y + z, 29 - 5 * y - z]
    for _ in range(8):
        a, b = rng.choice(pool), rng.choice(pool)
        f, k = rng.choice([2, 3, 4, 5, 6, 7, 8, 12, 16]), rng.randint(1, 9)
        new = rng.choice([a // f, a % f, a * k + b, a - 3 * b + k, a // f % k, a * (b + 1)])
        pool.append(new)
        if rng.random() < 0.2 and a.lo is not None and a.lo >= 0:
            pool += divmod(a, m)
    return [form for form in rng.sample(pool, 3) if can_emit(form)]


def can_emit(form: Form) -> bool:
    try:
        Emitter().emit(form)
    except FuserValueError:
        return False
    return True


@pytest.mark.parametrize("dtype", [DataType.Int32, DataType.Int], ids=lambda d: d.name)
def test_compiled_text_computes_the_form(dtype: DataType, tmp_path: Path) -> None:
    ctype = dtype.ctype
    p = ir.Var("p")
    names: dict[str, ir.Expr] = {"x": ir.at(p, ZERO), "y": ir.add(ir.at(p, ir.Int(1)), ZERO)}
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: neither $CXX, g++ nor clang++")
    families = [random_forms(seed, Context()) for seed in range(300)]
    results = sum(map(len, families))
    assert results > 800
    body: list[str] = []
    for forms in families:
        emitter = Emitter(dtype)
        values = emitter.emit_all(forms[:2], names)
        inner = emitter.child()  # sees the temporaries of the outer scope
        values += [inner.emit(form, names) for form in forms[2:]]
        lines = [*emitter.statements, *inner.statements, *(f"*out++ = {v};" for v in values)]
        body += ["{", *lines, "}"]
    source = tmp_path / "forms.cpp"
    source.write_text(
        f'extern "C" void run(const {ctype}* p, {ctype}* out) {{\n'
        f"const {ctype} z = p[2];\n" + "\n".join(body) + "\n}\n"
    )
    library = tmp_path / "forms.so"
    command = [*compiler.split(), "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    run = ctypes.CDLL(str(library)).run
    number = ctypes.c_int if ctype == "int" else ctypes.c_longlong
    out = (number * results)()
    for point in POINTS:
        run((number * 3)(*point), out)
        env = dict(zip(EXTENTS, point, strict=True))
        assert list(out) == [form.evaluate(env) for forms in families for form in forms], point


# ----------------------------------------------------------------------- what the text looks like


def divisions(emitter: Emitter) -> list[str]:
    """Divisions and moduli in the text that are neither shifts nor masks, by what they divide."""
    found = re.findall(r"\)(\w+) ([/%]) (?:\(\w+\))?(\w+)", "\n".join(emitter.statements))
    costly = [(x, op, d) for x, op, d in found if bin(int(d[:-1])).count("1") > 1]
    return [f"{x} {op} {d}" for x, op, d in costly]


@pytest.fixture
def context() -> Context:
    return Context()


def test_a_delinearised_index_costs_one_division_a_dimension(context: Context) -> None:
    u = context.var("u", 0, 6 * 5 * 7 * 10 - 1)
    digits = [u % 6, u // 6 % 5, u // 30 % 7, u // 210]
    emitter = Emitter()
    assert emitter.emit_all(digits) == ["i3", "i4", "i5", "i2"]
    assert emitter.statements == [
        "const int i0 = (unsigned)u / 6u;",
        "const int i1 = (unsigned)u / 30u;",
        "const int i2 = (unsigned)u / 210u;",
        "const int i3 = u - 6 * i0;",
        "const int i4 = i0 - 5 * i1;",
        "const int i5 = i1 - 7 * i2;",
    ]


def test_quotients_by_a_power_of_two_start_from_a_known_quotient(context: Context) -> None:
    u = context.var("u", 0, 9599)
    emitter = Emitter()
    emitter.emit_all([u // 96, u // 6 % 16, u % 6])
    assert emitter.statements == [
        "const int i0 = (unsigned)u / 6u;",
        "const int i1 = (unsigned)i0 / 16u;",
        "const int i2 = (unsigned)i0 % 16u;",
        "const int i3 = u - 6 * i0;",
    ]


def test_expressions_emitted_later_find_what_is_there(context: Context) -> None:
    u, v = context.var("u", 0, 9599), context.var("v", 0, 9)
    emitter = Emitter(prefix="t")
    first = emitter.emit(u % 96 * 7 + 1)
    count = len(emitter.statements)
    assert emitter.emit(u % 96 * 7 + 1) == first == "7 * t1 + 1"
    assert emitter.emit(3 * (u // 96) - v + 2) == "-v + 3 * t0 + 2"
    assert len(emitter.statements) == count
    carried = 5 * u + v
    emitter.emit_all([carried // 7, carried % 7])
    assert divisions(emitter) == ["u / 96u", "t2 / 7u"]


def test_children_see_their_parent_but_not_each_other(context: Context) -> None:
    u = context.var("u", 0, 999)
    emitter = Emitter()
    emitter.emit(u // 10)
    one, other = emitter.child(), emitter.child()
    assert one.emit(u // 10) == "i0"
    assert (one.emit(u // 7), other.emit(u // 7)) == ("i1", "i2")
    assert one.statements == ["const int i1 = (unsigned)u / 7u;"]
    assert emitter.statements == ["const int i0 = (unsigned)u / 10u;"]


def test_text_of_simple_forms(context: Context) -> None:
    u, n = context.var("u", 0, 99), context.var("n", 8, 800, multiple=8)
    emitter = Emitter()
    texts = [emitter.emit(form) for form in (u, -u, 3 - u, context.const(-7), n + 1, 2 * n)]
    assert texts == ["u", "-u", "-u + 3", "-7", "n + 1", "2 * n"]
    assert emitter.statements == []
    assert emitter.emit(n * u) == "8 * i1"  # n / 8 is what the product is made of
    assert emitter.statements == ["const int i0 = (unsigned)n / 8u;", "const int i1 = u * i0;"]


def test_names_of_variables(context: Context) -> None:
    u = context.var("u", 0, 99)
    emitter = Emitter(DataType.Int)
    place = ir.add(ir.times(ir.LaunchIndex.BLOCK, ir.Int(32)), ir.LaunchIndex.THREAD)
    assert emitter.emit(u // 10, {"u": place}) == "i1"
    assert emitter.statements == [
        "const long long i0 = blockIdx.x * 32 + threadIdx.x;",
        "const long long i1 = (unsigned long long)i0 / 10ull;",
    ]
    with pytest.raises(FuserValueError, match=r"not Var.*w"):
        emitter.emit(u, {"u": ir.Var("w")})


def test_what_cannot_be_emitted(context: Context) -> None:
    w, n = context.var("w", -3, 99), context.var("n", 0, None)
    with pytest.raises(FuserValueError, match="w may be -3"):
        Emitter().emit(w // 4)
    with pytest.raises(FuserValueError, match=r"n >= 1"):
        Emitter().emit(context.var("u", 0, 99) // n)
    with pytest.raises(FuserValueError, match="dtype"):
        IndexArithmetic(DataType.Float)
    # A pad moves the index below 0; the form divides a dividend moved back up.
    u = context.var("u", 0, 99)
    assert Emitter().emit((u - 2) // 4) == "i1 - 1"  # (u + 2) / 4 - 1


# -------------------------------------------------------------------------------- int or long long


class Int32(int):
    """An integer that says so when a result leaves 32 bits."""

    def checked(self, value: int) -> Int32:
        if not -(2**31) <= value < 2**31:
            raise OverflowError(value)
        return Int32(value)

    def __add__(self, other: int) -> Int32:
        return self.checked(int(self) + int(other))

    def __sub__(self, other: int) -> Int32:
        return self.checked(int(self) - int(other))

    def __mul__(self, other: int) -> Int32:
        return self.checked(int(self) * int(other))

    def __floordiv__(self, other: int) -> Int32:
        return self.checked(int(self) // int(other))

    def __mod__(self, other: int) -> Int32:
        return self.checked(int(self) % int(other))

    def __neg__(self) -> Int32:
        return self.checked(-int(self))


def run(emitter: Emitter, value: str, env: dict[str, int]) -> int:
    """Execute the emitted text in Python, every literal and variable a checked 32-bit integer."""
    names: dict[str, object] = {"I": Int32, **{k: Int32().checked(v) for k, v in env.items()}}

    def python(text: str) -> str:
        text = text.replace("(unsigned)", "").replace("/", "//")
        return re.sub(r"(?<![\w.])(\d+)u?\b", r"I().checked(\1)", text)

    for statement in emitter.statements:
        name, _, text = statement.removeprefix("const int ").rstrip(";").partition(" = ")
        names[name] = eval(python(text), dict(names))
    return int(eval(python(value), dict(names)))


def test_int_is_chosen_exactly_when_nothing_overflows() -> None:
    """`fits` against execution at the corners, where the largest intermediates are."""
    agreed = {True: 0, False: 0}
    for seed in range(400):
        rng = random.Random(seed)
        context = Context()
        his = {"u": rng.choice([9, 2**16, 2**31 - 1]), "v": rng.choice([1, 7, 2**20])}
        u, v = (context.var(name, 0, hi) for name, hi in his.items())
        k, j = rng.choice([1, 3, 2**12, 2**15 + 1]), rng.choice([1, 5, 2**11, 2**29])
        inner = k * u + j * v
        form = rng.choice(
            [inner, inner // 7 + v, inner % 1000 * j, u - inner, inner - inner // 3 * 2]
        )
        emitter = Emitter()
        text = emitter.emit(form)
        overflow = False
        for env in ({"u": a, "v": b} for a in (0, his["u"]) for b in (0, his["v"])):
            try:
                assert run(emitter, text, env) == form.evaluate(env)
            except OverflowError:
                overflow = True
        if fits(form):
            assert not overflow, (form, his)
        agreed[fits(form)] += fits(form) is not overflow
    assert min(agreed.values()) > 100
    assert sum(agreed.values()) >= 380  # the corner of an interval is not always a point


def test_int_boundaries() -> None:
    context = Context()
    u = context.var("u", 0, 2**31 - 1)
    assert fits(u)
    assert not fits(u + 1)
    assert fits(-u - 1)
    assert not fits(-u - 2)
    assert not fits(2 * u // 2 + u)
    assert fits(u + 1, bits=32)
    assert not fits(context.var("n", 0, None))
    a, b = context.var("a", 0, 2**20), context.var("b", 0, 2**20)
    assert not fits(a * b)
    assert not fits((a * b) // 2**20)
    assert fits(a * context.var("c", 0, 2**10))
    assert not fits(3 * u - 2 * u * 1 - u + a * 2**12 - b * 2**12)  # the sum passes 2**31


def test_lanes_times_a_stride_are_no_int_products_in_kernels_with_wide_indices() -> None:
    """Four lanes that are a gigabyte apart: the loop over them counts in int, their addresses do
    not.
    """
    context = Context()
    u, v = context.var("u", 0, 7), context.var("v", 0, 3)
    for dtype, is_cast in ((DataType.Int32, False), (DataType.Int, True)):
        wide = IndexArithmetic(dtype).value((1 << 30) * v)
        assert isinstance(wide, ir.Binary)
        assert isinstance(wide.right, ir.IntCast) is is_cast
        near = IndexArithmetic(dtype).value(8 * u + v)
        assert near == ir.Binary("+", ir.Binary("*", ir.Int(8), ir.Var("u")), ir.Var("v"))
