"""Steps of planning: what they do for a layer does not depend on how many layers there are.

Steps are counted, not timed. What is remembered or left out must not change an answer: each way to
save steps is compared with the way without it, on random programs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.building import op
from tests.support.generator import random_case
from tests.support.steps import steps
from thunder_fuser.analysis.footprint import demanded, footprint, reads_more
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, TensorView, Val
from thunder_fuser.lower.body import KernelBody
from thunder_fuser.lower.memory_order import Orders
from thunder_fuser.lower.rows.legal_rows import legal_arrangement
from thunder_fuser.segment import legality
from thunder_fuser.segment.legality import Legality
from thunder_fuser.segment.planner import partition

Float = DataType.Float


def softmaxes(layers: int) -> Fusion:
    """Layers that add the softmax of a residual stream to it, without anything in memory."""
    b = FusionBuilder()
    x = b.tensor([64, 256], Float)
    for _ in range(layers):
        e = op(b, "exp", op(b, "sub", x, b.reduce("max", x, [1], keepdim=True)))
        x = op(b, "add", op(b, "div", e, b.reduce("sum", e, [1], keepdim=True)), x)
    b.output(x)
    return b.build()


def recurrence(count: int) -> Fusion:
    """A recurrence, unrolled: a step reads slices of two inputs, and makes a piece of a cat."""
    b = FusionBuilder()
    gates, values = b.tensor([2, count, 64], Float), b.tensor([2, count, 64], Float)
    total, weight, most = (b.tensor([2, 64], Float) for _ in range(3))
    found = []
    for t in range(count):
        read = [b.slice(x, [0, t, 0], [2, t + 1, 64]) for x in (gates, values)]
        gate, value = (b.reshape(x, [2, 64]) for x in read)
        new = op(b, "maximum", gate, most)
        old, mine = (op(b, "exp", op(b, "sub", g, new)) for g in (most, gate))
        total = op(b, "add", op(b, "mul", old, total), op(b, "mul", mine, value))
        weight = op(b, "add", op(b, "mul", old, weight), mine)
        most = new
        found.append(b.reshape(op(b, "div", total, weight), [2, 1, 64]))
    b.output(b.cat(found, 1))
    for state in (total, weight, most):
        b.output(state)
    return b.build()


def test_legality_of_a_layer_does_not_depend_on_those_before_it() -> None:
    few, many = (steps(lambda n=n: partition(softmaxes(n))) for n in (20, 80))
    # Layers are alike, so that one test answers for all of them.
    assert many["legal_rows.legal_arrangement"] <= few["legal_rows.legal_arrangement"] + 2
    assert many["pull._pointwise"] <= 5 * few["pull._pointwise"]
    # What a layer's likeness is told by ends with the layer.
    assert many["candidate_body.followed"] <= 5 * few["candidate_body.followed"]


def test_another_output_costs_what_it_adds() -> None:
    """A kernel computes most of the program; what it may write besides is asked 75 times."""
    found = steps(lambda: partition(recurrence(60)))
    assert found["recompute._reads_more"] > 50
    assert found["footprint._operands"] < 400 * found["recompute._reads_more"]


def unshared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make each test of legality compare with one that is told and remembers nothing."""
    compared: list[int] = []

    def both(body: KernelBody, cluster: int, known: Orders) -> object:
        found = legal_arrangement(body, cluster, known)
        assert found == legal_arrangement(replace(body, given=()), cluster)
        compared.append(len(known))
        return found

    monkeypatch.setattr(legality, "legal_arrangement", both)
    return compared


KINDS = ({"reductions": True}, {"reductions": True, "groups": True, "gathers": True})


def cases() -> Iterator[Fusion]:
    for seed in range(40):
        yield random_case(seed, steps=24, **KINDS[seed % 2]).fusion
    yield from (softmaxes(6), recurrence(6))


def test_given_values_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = unshared(monkeypatch)
    fusions = list(cases())
    plans = [partition(fusion) for fusion in fusions]
    assert len(compared) > 100
    monkeypatch.setattr(Legality, "_likeness", lambda *_: None)
    assert [str(partition(fusion)) for fusion in fusions] == list(map(str, plans))


def test_reading_more_is_what_footprints_say() -> None:
    drawn = random.Random(0)
    counted = {True: 0, False: 0, None: 0}
    for fusion in cases():
        made = [e.output for e in fusion.exprs if isinstance(e.output, TensorView)]
        for _ in range(12):
            sources = set[Val](drawn.sample(made, len(made) // 4))
            able = [t for t in made if t not in sources]
            done, more = drawn.sample(able, min(2, len(able))), drawn.choice(able)
            known = demanded(fusion, done, sources)
            found = reads_more(fusion, more, sources, known)
            counted[found] += 1
            if found is not None:
                grown = footprint(fusion, [*done, more], sources)
                assert found == (grown != footprint(fusion, done, sources))
    assert min(counted[True], counted[False]) > 30
