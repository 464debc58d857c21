"""Integer forms against Python's integers: values, bounds, and never a false equality."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.seeds import blocks
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.ir.integer.symint import (
    Context,
    Digit,
    Form,
    impossible,
    provable,
    restrict,
)

# ------------------------------------------------------------------------- programs on domains


@dataclass
class Axis:
    """An iteration domain that a program made: its index form, its extent, its true values."""

    index: Form
    extent: int
    values: tuple[int, ...]


def split(axis: Axis, factor: int, inner: bool) -> list[Axis]:
    outer_extent = -(-axis.extent // factor)
    m = factor if inner else outer_extent
    outer, rest = divmod(axis.index, m)
    return [
        Axis(outer, outer_extent if inner else factor, tuple(v // m for v in axis.values)),
        Axis(rest, m, tuple(v % m for v in axis.values)),
    ]


def merge(outer: Axis, inner: Axis) -> Axis:
    n = inner.extent
    values = tuple(a * n + b for a, b in zip(outer.values, inner.values, strict=True))
    return Axis(outer.index * n + inner.index, outer.extent * n, values)


def resize(axis: Axis, left: int, right: int) -> Axis:
    values = tuple(v + left for v in axis.values)
    return Axis(axis.index + left, axis.extent + left + right, values)


def transformed(rng: random.Random, axes: list[Axis], divisible: bool) -> list[Axis]:
    """The axes after 1 to 7 random splits, merges, permutations and (not if divisible) resizes."""
    for _ in range(rng.randint(1, 7)):
        kind, k = rng.random(), rng.randrange(len(axes))
        axis = axes[k]
        if kind < 0.5:
            factors = range(1, axis.extent + (1 if divisible else 3))
            exact = [f for f in factors if not divisible or axis.extent % f == 0]
            axes[k : k + 1] = split(axis, rng.choice(exact), inner=rng.random() < 0.5)
        elif kind < 0.6 and not divisible:
            left, right = rng.randint(-2, 3), rng.randint(-2, 3)
            if axis.extent + left + right > 0:
                axes[k] = resize(axis, left, right)
        elif kind < 0.7:
            rng.shuffle(axes)
        elif k + 1 < len(axes):
            axes[k : k + 2] = [merge(axis, axes[k + 1])]
    return axes


FAMILIES, BATCH = 3000, 1000
PROGRAMS = 4
"""4 programs on the same axes make a family, within which results are compared: 24,000 programs."""


@pytest.mark.parametrize("divisible", [True, False], ids=["divisible", "any"])
@blocks(FAMILIES, BATCH, always=BATCH)
def test_programs_of_splits_merges_permutations_and_resizes(divisible: bool, first: int) -> None:
    equal = recognised = 0
    for seed in range(first, first + BATCH):
        rng = random.Random(seed)
        extents = [rng.choice([2, 3, 4, 6, 8, 12]) for _ in range(rng.randint(1, 3))]
        context = Context()
        points = list(itertools.product(*map(range, extents)))
        points = points if len(points) <= 200 else rng.sample(points, 200)
        environments = [{f"x{k}": value for k, value in enumerate(point)} for point in points]
        results: list[Axis] = []
        for _ in range(PROGRAMS):
            axes = [
                Axis(context.var(f"x{k}", 0, n - 1), n, tuple(point[k] for point in points))
                for k, n in enumerate(extents)
            ]
            for axis in transformed(rng, axes, divisible):
                form = axis.index
                assert tuple(map(form.evaluate, environments)) == axis.values, (seed, form)
                assert form.lo is not None
                assert form.hi is not None
                assert form.lo <= min(axis.values), (seed, form)
                assert max(axis.values) <= form.hi, (seed, form)
                results.append(axis)
        for one, other in itertools.combinations(results, 2):
            if one.index is other.index:
                assert one.values == other.values, (seed, one.index)
            if one.values == other.values and max(one.values) > 0:
                equal += 1
                recognised += one.index is other.index
    assert equal > 3 * BATCH / 2  # the programs do meet
    assert Fraction(recognised, equal) >= Fraction(99, 100), f"{recognised} of {equal}"


def test_bounds_are_nearly_always_attained() -> None:
    """They are where digits are independent; only carries between axes make them dependent."""
    attained = total = 0
    for seed in range(1000):
        rng = random.Random(seed)
        extents = [rng.choice([2, 3, 4, 6]) for _ in range(3)]
        points = list(itertools.product(*map(range, extents)))
        context = Context()
        axes = [
            Axis(context.var(f"x{k}", 0, n - 1), n, tuple(point[k] for point in points))
            for k, n in enumerate(extents)
        ]
        for axis in transformed(rng, axes, divisible=True):
            total += 1
            attained += (axis.index.lo, axis.index.hi) == (min(axis.values), max(axis.values))
    assert Fraction(attained, total) >= Fraction(99, 100), f"{attained} of {total}"


# -------------------------------------------------------------------------- arbitrary expressions

BOUNDS = {"a": (0, 11), "b": (-7, 8), "c": (3, None), "d": (-20, 30)}
MULTIPLES = {"a": 1, "b": 1, "c": 1, "d": 5}

Expression = tuple[str, Callable[[Context], Form], Callable[[dict[str, int]], int]]


def leaf(name: str) -> Expression:
    lo, hi = BOUNDS[name]
    return name, lambda x: x.var(name, lo, hi, MULTIPLES[name]), lambda env: env[name]


def combined(draw: tuple[str, Expression, Expression, int]) -> Expression:
    op, (tx, fx, vx), (ty, fy, vy), k = draw
    cases: dict[str, Expression] = {
        "+": (f"({tx} + {ty})", lambda c: fx(c) + fy(c), lambda e: vx(e) + vy(e)),
        "-": (f"({tx} - {ty})", lambda c: fx(c) - fy(c), lambda e: vx(e) - vy(e)),
        "k*": (f"({k} * {tx} + {ty})", lambda c: k * fx(c) + fy(c), lambda e: k * vx(e) + vy(e)),
        "-k": (f"({-k} - {tx})", lambda c: -k - fx(c), lambda e: -k - vx(e)),
        "//": (f"({tx} // {k})", lambda c: fx(c) // k, lambda e: vx(e) // k),
        "%": (f"({tx} % {k})", lambda c: fx(c) % k, lambda e: vx(e) % k),
        "*": (f"({tx} * {ty})", lambda c: fx(c) * fy(c), lambda e: vx(e) * vy(e)),
        "/c": (
            f"(({tx} * c + {ty}) // c)",
            lambda c: (fx(c) * leaf("c")[1](c) + fy(c)) // leaf("c")[1](c),
            lambda e: (vx(e) * e["c"] + vy(e)) // e["c"],
        ),
        "%c": (
            f"(({tx} * c + {ty}) % c)",
            lambda c: (fx(c) * leaf("c")[1](c) + fy(c)) % leaf("c")[1](c),
            lambda e: (vx(e) * e["c"] + vy(e)) % e["c"],
        ),
    }
    return cases[op]


expressions = st.recursive(
    st.sampled_from(sorted(BOUNDS)).map(leaf),
    lambda inner: st.tuples(
        st.sampled_from(["+", "-", "k*", "-k", "//", "%", "//", "%", "*", "/c", "%c"]),
        inner,
        inner,
        st.integers(1, 24),
    ).map(combined),
    max_leaves=8,
)
environments = st.fixed_dictionaries(
    {
        "a": st.integers(0, 11),
        "b": st.integers(-7, 8),
        "c": st.integers(3, 200),
        "d": st.integers(-4, 6).map(lambda x: 5 * x),
    }
)
checked = settings(max_examples=500, deadline=None, derandomize=True)


def within(form: Form, value: int) -> bool:
    return (form.lo is None or form.lo <= value) and (form.hi is None or value <= form.hi)


@checked
@given(expressions, st.lists(environments, min_size=1, max_size=8))
def test_any_expression_keeps_its_value(e: Expression, points: list[dict[str, int]]) -> None:
    text, build, value = e
    form = build(Context())
    for env in points:
        assert form.evaluate(env) == value(env), (text, form, env)
        assert within(form, value(env)), (text, form, env)
        for digit, _ in form.terms:
            part = form.context.interned(0, ((digit, 1),))
            assert within(part, part.evaluate(env)), (text, digit, env)


@checked
@given(expressions, st.integers(1, 40), environments)
def test_division_undoes_multiplication(e: Expression, k: int, env: dict[str, int]) -> None:
    context = Context()
    x = e[1](context)
    quotient, remainder = divmod(x, k)
    assert (quotient * k + remainder).evaluate(env) == e[2](env)
    assert provable(remainder, 0, k - 1)
    assert remainder % k is remainder
    assert divmod(x * k, k) == (x, context.const(0))
    assert (x * k).multiple_of(k)


@checked
@given(expressions, expressions, environments)
def test_substitution_is_evaluation(e: Expression, r: Expression, env: dict[str, int]) -> None:
    context = Context()
    form, replacement = e[1](context), r[1](context) % 12
    a = context.var("a", *BOUNDS["a"])
    inner = r[2](env) % 12
    assert form.substitute({a: replacement}).evaluate(env) == e[2]({**env, "a": inner})
    assert form.substitute({a: 7}).evaluate(env) == e[2]({**env, "a": 7})
    assert not form.substitute({a: 7}).depends_on(a)
    assert form.substitute({a: a}) is form


@checked
@given(expressions, expressions, st.integers(-20, 20), st.integers(0, 12), st.data())
def test_a_restricted_form_agrees_where_the_guard_holds(
    e: Expression, g: Expression, lo: int, width: int, data: st.DataObject
) -> None:
    context = Context()
    form, guard = e[1](context), g[1](context)
    restricted = restrict(guard, lo, lo + width).apply(form)
    for env in data.draw(st.lists(environments, min_size=4, max_size=8)):
        if lo <= guard.evaluate(env) <= lo + width:
            assert restricted.evaluate(env) == form.evaluate(env), (form, guard, env)
            assert not impossible(guard, lo, lo + width)
        else:
            assert not provable(guard, lo, lo + width)


# ------------------------------------------------------------------------------------- examples


@pytest.fixture
def context() -> Context:
    return Context()


def test_splitting_and_merging_an_index_gives_the_index_back(context: Context) -> None:
    u = context.var("u", 0, 95)
    outer, inner = divmod(u, 8)
    assert outer * 8 + inner is u
    assert (outer // 4) * 32 + (outer % 4) * 8 + inner is u
    assert (u + 8 * 5) // 8 is outer + 5
    assert u - outer * 8 is inner
    assert u - inner is outer * 8
    assert (95 - u) // 8 is 11 - outer
    assert (95 - u) % 8 is 7 - inner


def test_digits_of_a_mod_that_the_divisor_does_not_divide(context: Context) -> None:
    u = context.var("u", 0, None)
    x = u % 12
    assert (x // 8) * 8 + x % 8 is x
    assert x // 8 is (x // 4) // 2
    assert x // 8 is (u // 4 % 3) // 2


def test_a_division_that_does_not_come_out_even_stays_one_division(context: Context) -> None:
    x, y, u = context.var("x", 0, 2), context.var("y", 0, 7), context.var("u", 0, 99)
    total = (4 * x + y // 2) // 3
    assert total is x + (x + y // 2) // 3
    assert total.hi == 3
    assert (total // 5 * 5 + total % 5) is total
    assert ((3 * x + y) // 2) // 6 is (3 * x + y) // 12
    (digit, coef), *more = ((u + 2) // 4).terms
    assert (str(digit), coef, more) == ("(u + 2)//4", 1, [])
    assert str((u + 2) % 4) == "((u + 2)%4)"
    assert (u % 8 + 2) % 4 is (u + 2) % 4
    assert (3 * (x % 4) + y) % 4 is (3 * x + y) % 4


@pytest.mark.parametrize(
    ("extents", "strides", "offset", "shape"),
    [
        ((4,), (3,), 11, (2, 6, 2)),
        ((9,), (3,), 62, (4, 1, 6, 4)),
        ((2, 18), (32, 1), 42, (4, 6, 2, 2)),
        ((5, 3), (7, 1), 3, (4, 3, 5)),
    ],
)
def test_a_slice_of_a_reshape_is_affine_again(
    context: Context,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    shape: tuple[int, ...],
) -> None:
    """Read a strided piece through a shape that it does not line up with: still a view."""
    variables = [context.var(f"i{k}", 0, n - 1) for k, n in enumerate(extents)]
    position = sum((v * s for v, s in zip(variables, strides, strict=True)), context.const(offset))
    rest, size, linear = position, 1, context.const(0)
    for n in reversed(shape[1:]):
        rest, coordinate = divmod(rest, n)
        linear += coordinate * size
        size *= n
    linear += rest * size
    assert linear.affine(variables) == (offset, strides)


def test_permuted_index_has_no_division_across_variables(context: Context) -> None:
    u = context.var("u", 0, 2 * 32 * 128 * 64 - 1)
    rest, d = divmod(u, 64)
    rest, s = divmod(rest, 128)
    b, h = divmod(rest, 32)
    address = ((b * 128 + s) * 32 + h) * 64 + d
    assert address is 64 * (u // 8192 % 32) + 2048 * (u // 64 % 128) + u % 64 + 262144 * (
        u // 262144
    )
    assert all(not isinstance(digit.base, Form) for digit, _ in address.terms)


def test_symbolic_extent_with_a_known_multiple(context: Context) -> None:
    n = context.var("n", 8, None, multiple=8)
    k, j = context.var("k", 0, None), context.var("j", 0, 99)
    assert ((n * k + 8 * j) % 8).equals(0)
    assert (n * k + 8 * j).multiple_of(8)
    assert not n.multiple_of(16)
    assert (n // 8) * 8 is n
    assert (n * k + 8 * j) // 8 is (n // 8) * k + j
    assert (n * k) // n is k
    assert (n * k + n) // n is k + 1
    assert divmod(n * k * 6 + 3 * j, 3) == (2 * n * k + j, context.const(0))
    assert n.coefficient(n) == 1
    assert (n // 8).coefficient(n) is None
    assert (n.lo, n.hi) == (8, None)


def test_division_by_a_symbol_recombines(context: Context) -> None:
    u, m = context.var("u", 0, None), context.var("m", 1, 512)
    q, r = divmod(u, m)
    assert q * m + r is u
    assert divmod(q * m + r, m) == (q, r)
    assert divmod(r, m) == (context.const(0), r)
    assert (r.lo, r.hi) == (0, 511)
    assert q.lo == 0
    i = context.var("i", 0, 9)
    assert divmod((i + 3) * (m + 1) + (m + 1), m + 1) == (i + 4, context.const(0))
    assert divmod(context.var("v", 0, 4), context.var("p", 5, 6))[0].equals(0)


def test_products_are_commutative_associative_and_bounded(context: Context) -> None:
    x, y, z = context.var("x", 0, 4), context.var("y", -3, 5), context.var("z", 2, None)
    assert x * y is y * x
    assert (x * y) * z is x * (z * y)
    assert (2 * x) * (3 * y) is 6 * (x * y)
    assert ((x * y).lo, (x * y).hi) == (-12, 20)
    assert ((x * z).lo, (x * z).hi) == (0, None)
    assert ((y * z).lo, (y * z).hi) == (None, None)
    assert (x * y).depends_on(x)
    assert (x * y).coefficient(x) is None
    assert (x * y).affine([x, y]) is None


def test_coefficients_and_affine_maps(context: Context) -> None:
    i, j, k = context.var("i", 0, 7), context.var("j", 0, 4), context.var("k", 0, 9)
    form = 3 * i - 2 * j + 5
    assert form.affine([j, i, k]) == (5, (-2, 3, 0))
    assert form.affine([i]) is None
    assert (form + k % 4).affine([i, j, k]) is None
    assert (form + k % 4).coefficient(i) == 3
    assert (form + k % 4).coefficient(k) is None
    assert (form + k + k // 4).coefficient(k) is None
    assert form.coefficient(k) == 0
    assert ((i + j) // 3).coefficient(i) is None
    assert form.variables() == (i.terms[0][0].base, j.terms[0][0].base)
    one = context.var("one", 0, 0)  # an extent of 1
    assert form.affine([one, i, j]) == (5, (0, 3, -2))


def test_restriction_removes_digits_that_the_guard_fixes(context: Context) -> None:
    u, v = context.var("u", 0, 63), context.var("v", 0, 7)
    guard = 8 * (u % 4) + v
    known = restrict(guard, 0, 7)
    assert known.apply(u % 4 + 4 * v) is 4 * v
    assert known.apply(u // 4) is u // 4
    assert known.apply((u % 4 + v) // 3) is v // 3
    assert restrict(guard, 0, 15).apply(u % 4 // 2).equals(0)
    assert restrict(guard, None, None).apply(guard) is guard
    # A piece [4096, 8192) of a concatenation along an axis of 12288: the piece's own index.
    w = context.var("w", 0, 100 * 12288 - 1)
    column = w % 12288
    inside = restrict(column - 4096, 0, 4095)
    index = (w // 12288) * 4096 + (column - 4096)
    assert inside.apply(index // 4096) is w // 12288
    assert inside.apply(index % 4096) is w % 4096


def test_a_guard_that_cannot_hold_says_nothing(context: Context) -> None:
    u = context.var("u", 0, 63)
    assert impossible(u, 64, 70)
    assert restrict(u, 64, 70).facts == ()


def test_bounds_prove_or_refute(context: Context) -> None:
    u, n = context.var("u", 0, 63), context.var("n", 0, None)
    assert provable(u % 8 + 8 * (u // 8), 0, 63)
    assert not provable(u, 0, 62)
    assert provable(n, 0, None)
    assert not provable(n, 0, 10**9)
    assert impossible(u + 64, 0, 63)
    assert not impossible(u + 63, 0, 63)
    assert impossible(-1 - n, 0, None)


def test_vector_access_is_visible_in_the_coefficients(context: Context) -> None:
    u, v = context.var("u", 0, 1023), context.var("v", 0, 7)
    i = 8 * u + v
    address = (i // 1024) * 6144 + 4096 + i % 1024
    assert address.coefficient(v) == 1
    assert (address - v).multiple_of(8)
    assert not (address - v + 100).multiple_of(8)
    assert not (i // 16).depends_on(v)  # the same value for the whole vector


# The four sharding questions: is the device index of the output that of the input?
HEADS = [(h, a, d) for a in range(1, 13) for m in range(1, 7) for d in range(1, 9) for h in [a * m]]


def test_device_index_through_a_reshape_that_splits_or_merges(context: Context) -> None:
    same = recognised = 0
    for h, a, d in HEADS:
        m = h // a
        x = context.var(f"x{h}", 0, h - 1)
        whole, parts = x // -(-h // d), (x // m) // -(-a // d)
        truth = all(i // -(-h // d) == (i // m) // -(-a // d) for i in range(h))
        assert truth == (m * (-a % d) < d)  # the exact condition
        assert truth or whole is not parts
        same += truth
        recognised += whole is parts
        if a % d == 0:
            assert whole is parts
            i, j = context.var(f"i{a}", 0, a - 1), context.var(f"j{m}", 0, m - 1)
            assert (i * m + j) // (h // d) is i // (a // d)
            assert x % (h // d) is (x // m) % (a // d) * m + x % m  # the local part
    assert same > 200
    assert recognised == same


def test_device_index_through_slices_and_concatenations(context: Context) -> None:
    y = context.var("y", 0, 4095)
    assert (y + 4096) % 8 is y % 8
    assert (y + 4096) // 8 is y // 8 + 512
    assert (y + 100) % 8 is not y % 8
    # Contiguous heads per rank of [3, d, h / d]: offsets are multiples of h.
    x = context.var("x", 0, 3 * 4096 - 1)
    rank = x // 512 % 8
    assert [rank.substitute({x: y + o}) is y // 512 for o in (0, 4096, 8192)] == [True] * 3
    assert rank.substitute({x: y + 4608}) is not y // 512


def test_equal_extents_are_not_equal_domains(context: Context) -> None:
    u = context.var("u", 0, 999)
    q = u % 128
    assert q // 256 is not q
    assert q % 256 is q
    five = context.var("five", 0, 4)
    # split(5, 100, outer) and split(5, 1, inner): the same index forms, other extents.
    assert five // -(-5 // 100) is five // 1


# -------------------------------------------------------------------------------------- contract


def test_forms_are_interned_and_hash_by_their_order(context: Context) -> None:
    u, v = context.var("u", 0, 9), context.var("v", 0, 9)
    assert context.var("u", 0, 9) is u
    assert context.var("u", 0, 8) is not u
    assert u + v is v + u
    assert u + v == v + u
    assert 2 * u != u
    assert hash(u) == u.ordinal
    other = Context()
    replay = other.var("u", 0, 9), other.var("v", 0, 9)
    assert [hash(x) for x in replay] == [hash(u), hash(v)]
    assert str(replay[1] * 3 - replay[0] // 4 + 1) == "3*v - (u//4) + 1"


def test_constants(context: Context) -> None:
    assert int(context.const(7)) == 7
    assert context.const(7).is_constant
    assert context.const(7).equals(7)
    assert not context.var("u", 0, 9).equals(7)
    assert context.var("u", 3, 3).equals(3)
    assert context.var("n", 1, 15, multiple=8).equals(8)
    assert divmod(17, context.const(5)) == (context.const(3), context.const(2))
    assert [str(context.const(k)) for k in (-3, 0)] == ["-3", "0"]
    with pytest.raises(FuserValueError, match="not a constant"):
        int(context.var("u", 0, 9))


def test_errors_say_what_is_wrong(context: Context) -> None:
    u = context.var("u", 0, 9)
    with pytest.raises(FuserValueError, match="another context"):
        u + Context().var("u", 0, 9)
    with pytest.raises(FuserValueError, match="must be positive"):
        u // 0
    with pytest.raises(FuserValueError, match="no multiple of 8"):
        context.var("n", 1, 7, multiple=8)
    with pytest.raises(FuserValueError, match="multiple must be at least 1"):
        context.var("n", 1, 7, multiple=0)
    with pytest.raises(FuserTypeError, match="expected a Form or an int, got float"):
        u + 1.5  # type: ignore[operator]
    with pytest.raises(FuserTypeError, match="is not defined"):
        bool(u)
    with pytest.raises(FuserValueError, match="expected a variable"):
        u.coefficient(u + 1)
    n = context.var("n", 0, None, multiple=8)
    with pytest.raises(FuserValueError, match="a multiple of 8"):
        n.substitute({n: u})


def test_a_context_dies_with_its_last_reference() -> None:
    context = Context()
    u, n = context.var("u", 0, 999), context.var("n", 1, None)
    forms = [(u * 5 + k) // 7 % 3 + u * n // (n + 1) for k in range(10)]
    alive = weakref.ref(context)
    del context
    assert alive() is not None
    del u, n, forms
    gc.collect()
    assert alive() is None


def test_adversarial_input_ends_and_stays_exact() -> None:
    """Chains and sums of divisions that never come out even."""
    rng = random.Random(0)
    context = Context()
    leaves = [context.var(f"v{k}", 0, 50 + k) for k in range(24)]
    many = context.const(0)
    for k in range(24):
        many += (3 * leaves[k] + 2 * leaves[k - 1] + leaves[k - 2]) // 7
    deep = leaves[0]
    for k in range(60):
        deep = (deep * 3 + leaves[k % 24] + 1) // 2 + deep % 5
    pool = list(leaves)
    for _ in range(150):
        x, y, f = rng.choice(pool[-30:]), rng.choice(pool[-30:]), rng.choice([2, 3, 4, 5, 6, 8])
        pool.append(rng.choice([x * f + y, x // f, (x * 3 + y) // f, (x + y) % (f * 5), x * 5 - y]))
    env = {f"v{k}": rng.randint(0, 50 + k) for k in range(24)}
    values = [env[f"v{k}"] for k in range(24)]
    carries = [(3 * values[k] + 2 * values[k - 1] + values[k - 2]) // 7 for k in range(24)]
    assert many.evaluate(env) == sum(carries)
    assert (many // 5 * 5 + many % 5).evaluate(env) == sum(carries)
    expected = values[0]
    for k in range(60):
        expected = (expected * 3 + values[k % 24] + 1) // 2 + expected % 5
    assert deep.evaluate(env) == expected
    assert all(within(form, form.evaluate(env)) for form in pool)


def test_digits_show_where_they_come_from(context: Context) -> None:
    u = context.var("u", 0, 95)
    (digit, coef), *more = (2 * (u // 8 % 4)).terms
    assert not more
    assert isinstance(digit, Digit)
    assert (digit.s, digit.e, digit.lo, digit.hi, coef) == (8, 4, 0, 3, 2)
