"""Stored or computed again: cuts and prices against exact integer programs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix
from scipy.sparse.csgraph import maximum_flow

from tests.support.steps import steps
from thunder_fuser.segment.recompute.min_cut import INFINITE, FlowNetwork
from thunder_fuser.segment.recompute.price_bounds import (
    LeastOfComputing,
    Value,
    bits,
    own_operands,
    without_vain,
)
from thunder_fuser.segment.recompute.store_or_recompute import (
    Choice,
    _cheapest,
    _Problem,
    _worth_asking,
    materialize,
)

Problem = tuple[list[Value], list[list[int]]]


def price(values: Sequence[Value], choices: Sequence[Choice]) -> int:
    stored = frozenset().union(*(c.read for c in choices))
    return sum(values[v].write for v in stored) + sum(
        sum(values[v].read for v in c.read) + sum(values[v].compute or 0 for v in c.computed)
        for c in choices
    )


def least(values: Sequence[Value], wanted: Sequence[Sequence[int]]) -> int:
    """The least price, as an integer program: v is stored; k reads v; k computes v."""
    n, k = len(values), len(wanted)
    stored, read, computed = 0, n, n + n * k
    costs = np.zeros(n + 2 * n * k)
    most = np.ones(len(costs))
    # Sums of variables, with signs, that must be at least so much.
    rows: list[tuple[dict[int, int], int]] = []
    for v, value in enumerate(values):
        costs[stored + v] = value.write
        for c in range(k):
            r, m = read + c * n + v, computed + c * n + v
            costs[r], costs[m] = value.read, value.compute or 0
            most[m] = value.compute is not None
            rows.append(({stored + v: 1, r: -1}, 0))
            rows += [
                ({read + c * n + u: 1, computed + c * n + u: 1, m: -1}, 0) for u in value.operands
            ]
    for c, names in enumerate(wanted):
        rows += [({read + c * n + v: 1, computed + c * n + v: 1}, 1) for v in names]
    matrix = lil_matrix((len(rows), len(costs)))
    for k_row, (terms, _) in enumerate(rows):
        for column, sign in terms.items():
            matrix[k_row, column] += sign
    found = milp(
        costs,
        constraints=LinearConstraint(matrix.tocsr(), lb=np.array([low for _, low in rows])),
        integrality=np.ones(len(costs)),
        bounds=Bounds(np.zeros(len(costs)), most),
    )
    return round(found.fun)


def made_up(seed: int) -> Problem:
    """Values of all sizes, some of which cannot be computed or are in memory anyway."""
    rng = random.Random(seed)
    count, consumers = rng.choice([10, 20, 40]), rng.choice([1, 2, 3, 5])
    values: list[Value] = []
    for v in range(count):
        operands = tuple(rng.sample(range(v), min(v, rng.choice([1, 2, 3])))) if v > 2 else ()
        size = rng.choice([1, 4, 64, 64, 128, 200])
        fixed = not operands or rng.random() < 0.1
        write = 0 if not operands or rng.random() < 0.1 else 16 * size * rng.choice([1, 2, 3])
        compute = None if fixed else size * rng.choice([0, 1, 8, 30, 60])
        values.append(Value(operands, write, 16 * size, compute))
    wanted = [rng.sample(range(count // 3, count), rng.choice([1, 2, 4])) for _ in range(consumers)]
    return values, wanted


def check(
    values: Sequence[Value], wanted: Sequence[Sequence[int]], found: Sequence[Choice]
) -> None:
    """Everything that is wanted is there, and so is what that is computed from."""
    for names, choice in zip(wanted, found, strict=True):
        there = choice.read | choice.computed
        assert set(names) <= there
        for v in choice.computed:
            assert values[v].compute is not None
            assert set(values[v].operands) <= there


def test_close_to_the_least_price_and_nearly_always_there() -> None:
    equal = 0
    for seed in range(200):
        values, wanted = made_up(seed)
        found = materialize(values, wanted)
        check(values, wanted, found)
        best = least(values, wanted)
        assert best <= price(values, found) <= 1.05 * best, seed
        equal += price(values, found) == best
    assert equal >= 190


def test_one_consumer_pays_the_least() -> None:
    for seed in range(60):
        values, wanted = made_up(seed)
        found = materialize(values, wanted[:1])
        assert price(values, found) == least(values, wanted[:1]), seed


def test_what_is_read_anyway_is_free_to_compute_from() -> None:
    """x is wanted; exp(x) costs less to compute than to read."""
    values = [Value((), 0, 64, None), Value((0,), 64, 64, 8)]
    assert materialize(values, [[0, 1]]) == (Choice(frozenset({0}), frozenset({1})),)


def test_of_equal_prices_reading_is_taken() -> None:
    values = [Value((), 0, 0, None), Value((0,), 0, 64, 64)]
    assert materialize(values, [[1]]) == (Choice(frozenset({1}), frozenset()),)


@pytest.mark.parametrize("readers", [1, 4])
def test_readers_share_a_write(readers: int) -> None:
    """Computing costs 100 each; storing 200 once and 20 for each reader."""
    values = [Value((), 0, 0, None), Value((0,), 200, 20, 100)]
    found = materialize(values, [[1]] * readers)
    assert all((1 in choice.read) == (readers > 1) for choice in found)


def test_a_minimum_cut_is_a_maximum_flow() -> None:
    """The network of Cormen et al., Introduction to Algorithms, figure 26.1: 23."""
    network = FlowNetwork()
    s, a, b, c, d, t = (network.node() for _ in range(6))
    arcs = [(s, a, 16), (s, b, 13), (a, c, 12), (b, a, 4), (c, b, 9), (b, d, 14), (d, c, 7)]
    arcs += [(c, t, 20), (d, t, 4)]
    for arc in arcs:
        network.connect(*arc)
    behind = network.cut(s, t)
    assert behind[t]
    assert not behind[s]
    assert sum(cap for tail, head, cap in arcs if behind[head] and not behind[tail]) == 23


@pytest.mark.parametrize("count", [40, 160])
def test_waves_do_not_grow_with_the_lengths_of_paths(count: int) -> None:
    """A chain of values, from each of which a shortcut of another length leads to its end."""
    network = FlowNetwork()
    source, sink = network.node(), network.node()
    chain = [network.node() for _ in range(2 * count)]
    for k, node in enumerate(chain):
        network.connect(source, node, 3)
        network.connect(node, sink if k + 1 == len(chain) else chain[k + 1], 2 * len(chain))
    for k in range(count):
        network.connect(chain[k], chain[-1 - k], 1 + k % 3)
    found = steps(lambda: network.cut(source, sink))
    assert found["min_cut._steps"] <= 12
    assert found["min_cut._push"] < 20 * len(chain)


def test_cuts_are_those_of_maximum_flows() -> None:
    drawn = random.Random(0)
    for _ in range(200):
        count = drawn.randint(2, 12)
        capacities = lil_matrix((count, count), dtype=np.int32)
        for _ in range(3 * count):
            tail, head = drawn.sample(range(count), 2)
            capacities[tail, head] = drawn.choice([1, 2, 3, 5, 9])
        network = FlowNetwork()
        for _ in range(count):
            network.node()
        arcs = list(zip(*capacities.nonzero(), strict=True))
        for tail, head in arcs:
            network.connect(int(tail), int(head), int(capacities[tail, head]))
        behind = network.cut(0, count - 1)
        price = sum(int(capacities[t, h]) for t, h in arcs if behind[h] and not behind[t])
        assert not behind[0]
        assert price == maximum_flow(capacities.tocsr(), 0, count - 1).flow_value


def test_nothing_separates_what_is_joined_for_good() -> None:
    network = FlowNetwork()
    s, a, t = (network.node() for _ in range(3))
    network.connect(s, a, INFINITE)
    network.connect(a, t, 5)
    assert network.cut(s, t) == [False, False, True]


def layers(count: int) -> Problem:
    """Layers that each give a product and an activation of it, which two consumers want."""
    values, wanted = [], []
    for _ in range(count):
        product = len(values)
        values += [
            Value((), 0, 10, None),
            Value((product,), 10, 10, 1),
            Value((product, product + 1), 10, 10, 1),
        ]
        wanted += [[product + 1], [product + 1, product + 2]]
    return values, wanted


def read_stream(count: int) -> Problem:
    """Layers that each add a product to a stream; what they make of it, two consumers want."""
    values, wanted = [Value((), 0, 10, None)], []
    stream = 0
    for _ in range(count):
        product = len(values)
        values += [
            Value((), 0, 10, None),
            Value((product, stream), 10, 10, 1),
            Value((product + 1,), 10, 10, 1),
        ]
        stream = product + 1
        wanted += [[stream + 1], [stream, stream + 1]]
    return values, wanted


def test_no_layer_considers_to_add_up_the_stream_from_its_beginning() -> None:
    """What only this consumer's value is computed from is paid for that value alone."""
    few, many = (steps(lambda n=n: materialize(*read_stream(n))) for n in (20, 80))
    assert many["min_cut.connect"] <= 5 * few["min_cut.connect"]


def test_equal_layers_are_cut_once_and_alike() -> None:
    cuts = {}
    for count in (8, 32):
        _cheapest.cache_clear()
        found = materialize(*layers(count))
        cuts[count] = _cheapest.cache_info().misses
        first = [(c.read, c.computed) for c in found[:2]]
        for k in range(count):
            here = found[2 * k : 2 * k + 2]
            assert [
                tuple(frozenset(v - 3 * k for v in names) for names in (c.read, c.computed))
                for c in here
            ] == first
    assert cuts[8] == cuts[32]


def residual_stream(count: int) -> Problem:
    """Sums of what torch gives, each of the one before it, and what consumers compute from them."""
    values, wanted = [Value((), 0, 10, None)], []
    stream = 0
    for _ in range(count):
        product = len(values)
        values += [
            Value((), 10, 10, None),
            Value((stream, product), 10, 10, 1),
            Value((product + 1,), 20, 10, 1),
        ]
        stream = product + 1
        wanted.append([product + 2])
    return values, wanted


def test_a_residual_stream_is_no_network_of_all_its_layers() -> None:
    asked = {}
    for count in (8, 32):
        values, wanted = residual_stream(count)
        asked[count] = sum(map(int.bit_count, _Problem(values, wanted).subgraphs))
        found = materialize(values, wanted)
        assert [choice.read for choice in found] == [{names[0] - 1} for names in wanted]
    assert asked[32] == 4 * asked[8]


def test_what_is_never_computed_costs_nothing() -> None:
    """The least price is the same without the values that are vain to compute."""
    left_out = 0
    for seed in range(40):
        values, wanted = made_up(seed)
        kept = without_vain(values, own_operands(values, wanted), wanted)
        fewer = [kept.get(v, value) for v, value in enumerate(values)]
        left_out += fewer != values
        assert least(fewer, wanted) == least(values, wanted), seed
    assert left_out > 10


def test_what_is_profitable_is_what_a_walk_finds() -> None:
    grown = 0
    for seed in range(60):
        values, wanted = made_up(seed)
        problem = _Problem(values, wanted)
        kept = problem.values
        for names, found in zip(problem.wanted, problem.subgraphs, strict=True):
            least = LeastOfComputing(kept, problem._own, names)
            walked = _worth_asking(kept, names, least, lambda v, of=kept: of[v].write)
            assert found == bits(walked)
            grown += len(walked) > len(names)
    assert grown > 60


def gradient_stream(count: int) -> Problem:
    """Sums of a gradient and one that is computed of what torch gives, in bf16: each is wanted by
    a consumer, and in fp32 by another, and is computed in a few cheap steps from the one before it.
    """
    values, wanted = [Value((), 0, 100, None)], []
    stream = 0
    for _ in range(count):
        given = len(values)
        values += [
            Value((), 0, 100, None),
            Value((stream,), 200, 200, 3),
            Value((given,), 200, 200, 12),
            Value((given + 1, given + 2), 200, 200, 3),
            Value((given + 3,), 100, 100, 3),
            Value((given + 4,), 200, 200, 3),
        ]
        stream = given + 4
        wanted += [[stream, given], [stream + 1]]
    return values, wanted


def test_steps_for_a_gradient_are_those_of_few_layers() -> None:
    few, many = (steps(lambda n=n: materialize(*gradient_stream(n))) for n in (20, 80))
    for name in ("price_bounds._asked", "store_or_recompute.producers"):
        assert 0 < many[name] <= 5 * few[name]
