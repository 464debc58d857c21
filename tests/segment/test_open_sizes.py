"""Plans of definitions with open sizes: bytes are formulas, and those of every concrete plan."""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.building import op
from tests.support.seeds import blocks
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Scalar, TensorView
from thunder_fuser.ir.integer.counts import evaluated
from thunder_fuser.segment.plan import SegmentedFusion

Float, BFloat16, Int = DataType.Float, DataType.BFloat16, DataType.Int


def plan_of(b: FusionBuilder) -> SegmentedFusion:
    return CompiledFusion(b.build()).plan()


def counts(plan: SegmentedFusion) -> list[int]:
    """Every number of bytes that a plan has."""
    found = [plan.bytes, plan.bytes_ideal, plan.peak_bytes]
    found += [n for s in plan.segments for n in (s.bytes_read, s.bytes_written)]
    return found + [n.bytes for n in (*plan.boundaries, *plan.buffers)]


def shape_of(plan: SegmentedFusion) -> object:
    """What two plans have in common that are the same segmentation."""
    segments = [
        (s.kind, s.kernels, s.operations, [t.name for t in s.inputs], [t.name for t in s.outputs])
        for s in plan.segments
    ]
    return segments, [(b.tensor.name, b.producer, b.consumers) for b in plan.boundaries]


# ---- formulas


def test_a_plan_without_sizes_says_bytes_in_sizes(b: FusionBuilder) -> None:
    x, bias = b.tensor([-1, -1], BFloat16), b.tensor([-1], BFloat16)
    h = b.cast_tensor(op(b, "add", x, bias), Float)
    b.output(op(b, "exp", b.segment_set(h)))
    assert str(plan_of(b)).splitlines() == [
        "plan: 2 kernels, 14*i0*i1 + 2*i1 B moved (ideal 6*i0*i1 + 2*i1 B), peak 8*i0*i1 B",
        "  segment 0 (pointwise): (T0, T1) -> (T2): 1 kernel, 2*i0*i1 + 2*i1 B read, "
        "4*i0*i1 B written: add",
        "  segment 1 (pointwise): (T2) -> (T4): 1 kernel, 4*i0*i1 B read, 4*i0*i1 B written: exp",
        "  boundary T2 (4*i0*i1 B): segment 0 -> 1: [cut] the definition cuts here (segment_set)",
        "  sizes i0 = T0.size(0) (here 2,048), i1 = T0.size(1) = T1.size(0) (here 2,304)",
    ]


def test_a_definition_answers_without_inputs() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4096], True, Float)
        fd.add_output(fd.ops.div(x, fd.ops.sum(x, [1], keepdim=True)))
    plan = fd.plan()
    assert str(plan.bytes) == str(plan.bytes_ideal) == "32,768*i0"
    assert evaluated(plan.bytes, {"i0": 7}) == fd.plan([torch.randn(7, 4096)]).bytes
    assert fd.plan(sizes={"i0": 100}).bytes == 3_276_800


def test_the_numbers_of_a_static_plan_are_plain(b: FusionBuilder) -> None:
    b.output(op(b, "exp", b.tensor([4, 5], Float)))
    assert {type(n) for n in counts(plan_of(b))} == {int}
    assert plan_of(b).sizes is None


def test_a_size_that_is_known_is_no_variable(b: FusionBuilder) -> None:
    x, y = b.tensor([-1, -1], Float), b.tensor([3, 1000], Float)
    b.output(op(b, "add", x, y))
    assert (plan_of(b).bytes, type(plan_of(b).bytes)) == (36_000, int)


def test_sizes_follow_equations(b: FusionBuilder) -> None:
    """A cat's length, what a pad adds, the factor that a reshape leaves."""
    x, y, z = b.tensor([-1], Float), b.tensor([-1], Float), b.tensor([-1], Float)
    b.output(op(b, "add", z, b.cat([x, b.pad(y, [1, 2])])))
    w = b.tensor([-1, -1], Float)
    b.output(op(b, "exp", b.reshape(w, [w.domain.shape[0], 32, 4])))
    plan = plan_of(b)
    assert plan.sizes is not None
    assert list(plan.sizes.places.values()) == [("T0.size(0)",), ("T1.size(0)",), ("T3.size(0)",)]
    # x and y, z and the sum, the reshaped and its exponential.
    assert str(plan.bytes) == "12*i0 + 12*i1 + 1,024*i2 + 24"


def test_a_slice_says_where_its_formula_holds(b: FusionBuilder) -> None:
    x = b.tensor([-1, -1], Float)
    b.output(op(b, "exp", b.slice(x, [0, 3], [x.domain.shape[0], 10])))
    plan = plan_of(b)
    assert str(plan).endswith("formulas hold where i1 >= 10")
    assert str(plan.bytes) == "56*i0"


def test_repeated_and_overlapping_reads_count_once(b: FusionBuilder) -> None:
    x = b.tensor([-1, -1], Float)
    rows, columns = x.domain.shape
    left, right = b.slice(x, [0, 0], [rows, columns - 1]), b.slice(x, [0, 1], [rows, columns])
    b.output(op(b, "mul", left, right))
    assert str(plan_of(b).bytes) == "8*i0*i1 - 4*i0"


def test_halves_are_rounded_down(b: FusionBuilder) -> None:
    x = b.tensor([-1], Float)
    b.output(op(b, "exp", b.slice(x, [0], [x.domain.shape[0] // 2])))
    plan = plan_of(b)
    assert str(plan.bytes) == "8*(i0//2)"
    assert evaluated(plan.bytes, {"i0": 7}) == 24


def test_what_data_decide_is_an_upper_bound(b: FusionBuilder) -> None:
    table, index = b.tensor([-1, -1], Float), b.tensor([-1], Int)
    b.output(op(b, "exp", b.gather("index_select", table, 0, index)))
    plan = plan_of(b)
    (segment,) = plan.segments
    # i2 rows are read, if they are fewer than there are.
    assert str(segment.bytes_read) == "at most 4*i0*i1 + 8*i2"
    assert str(segment.bytes_written) == "4*i1*i2"


def test_the_peak_may_be_one_of_several(b: FusionBuilder) -> None:
    x, y = b.tensor([-1], Float), b.tensor([-1], Float)
    first = op(b, "exp", b.segment_set(op(b, "sin", x)))
    total = b.reduce("sum", first, [0])
    b.output(op(b, "exp", b.segment_set(op(b, "add", y, b.segment_set(total)))))
    peak = plan_of(b).peak_bytes
    assert evaluated(peak, {"i0": 1000, "i1": 10}) > evaluated(peak, {"i0": 10, "i1": 10})
    assert evaluated(peak, {"i0": 10, "i1": 1000}) > evaluated(peak, {"i0": 10, "i1": 10})


def test_numbers_that_are_sizes_have_names() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1], True, Float)
        n = fd.define_scalar(None, DataType.Int)
        fd.add_output(fd.ops.exp(fd.ops.broadcast_in_dim(x, [x.size(0), n], [0, 1])))
    plan = fd.plan()
    assert str(plan.bytes) == "4*i0*i1 + 4*i0"
    assert plan.sizes is not None
    assert plan.sizes.places["i1"] == ("S1",)


# ---- mistakes


def test_sizes_that_cannot_be_told_are_asked_for(b: FusionBuilder) -> None:
    x, y = b.tensor([-1], Float), b.tensor([-1], Float)
    n, m = x.domain.shape[0], y.domain.shape[0]
    b.output(b.full([n, m], 1.0, Float))
    b.output(op(b, "add", b.full([n * n], 1.0, Float), b.full([m * m * 2], 1.0, Float)))
    with pytest.raises(FuserValueError, match=r"cannot be told from the definition; pass inputs"):
        plan_of(b)


def test_sizes_that_contradict_each_other_are_an_error(b: FusionBuilder) -> None:
    x = b.tensor([-1], Float)
    b.output(op(b, "add", x, b.tensor([3], Float)))
    y = b.tensor([4], Float)
    with pytest.raises(FuserValueError, match=r"conflict .* 3 \(dimension 0 of T0, .* and 4 \("):
        op(b, "add", x, y)


def test_wanted_sizes_are_of_the_definition(b: FusionBuilder) -> None:
    x = b.tensor([-1], Float)
    b.output(b.slice(op(b, "exp", x), [0], [10]))
    fusion = CompiledFusion(b.build())
    with pytest.raises(FuserValueError, match="batch is no size of this definition; it has i0"):
        fusion.plan(sizes={"batch": 3})
    assert str(fusion.plan(sizes={"i0": 3}).conditions[0]) == "10 >= i0"


def test_wanted_sizes_make_sense(b: FusionBuilder) -> None:
    b.output(op(b, "exp", b.tensor([-1], Float)))
    fusion = CompiledFusion(b.build())
    with pytest.raises(FuserValueError, match="i0 is 1; formulas are for sizes of at least 2"):
        fusion.plan(sizes={"i0": 1})
    with pytest.raises(FuserValueError, match="inputs are given"):
        fusion.plan([torch.zeros(3)], sizes={"i0": 3})
    static = FusionBuilder()
    static.output(op(static, "exp", static.tensor([3], Float)))
    with pytest.raises(FuserValueError, match="it has none"):
        CompiledFusion(static.build()).plan(sizes={"i0": 3})


def test_wanted_sizes_may_be_equal(b: FusionBuilder) -> None:
    """Two pads are one tensor then, and what is counted of it is where these sizes are one."""
    x, y = b.tensor([-1, -1], Float), b.tensor([-1], Float)
    for size in x.domain.shape:
        b.output(op(b, "exp", b.pad(y, [0, size])))
    b.output(op(b, "exp", x))
    fusion = CompiledFusion(b.build())
    apart, equal = fusion.plan(), fusion.plan(sizes={"i0": 40, "i1": 40, "i2": 50})
    assert str(apart.bytes) == "8*i0*i1 + 4*i0 + 4*i1 + 12*i2"
    assert apart.conditions == ()
    assert "i0 == i1" in [str(c) for c in equal.conditions]
    assert evaluated(equal.bytes, {"i0": 40, "i1": 40, "i2": 50}) == equal.bytes
    assert fusion.plan(sizes={"i0": 40, "i2": 50}).conditions == ()


# ---- the property


class _Random:
    """A random definition whose sizes are all open."""

    def __init__(self, seed: int) -> None:
        self.b, self.rng = FusionBuilder(), random.Random(seed)
        b, rng = self.b, self.rng
        rank = rng.randint(1, 3)
        self.shapes = [[-1] * rank for _ in range(rng.randint(1, 2))]
        self.pool = [b.tensor(s, rng.choice([Float, BFloat16])) for s in self.shapes]
        for _ in range(rng.randint(2, 8)):
            self.pool.append(self._step(rng.choice(self.pool)))
        for t in rng.sample(self.pool[len(self.shapes) :], min(2, rng.randint(1, 3))):
            b.output(t)
        b.output(self.pool[-1])

    def _step(self, x: TensorView) -> TensorView:
        steps = [self._unary, self._binary, self._cut]
        if x.rank:
            steps += [self._slice, self._pad, self._cat, self._fold, self._view, self._select]
        made = self.rng.choice(steps)(x)
        assert isinstance(made, TensorView)
        return made

    def _unary(self, x: TensorView) -> TensorView:
        return op(self.b, self.rng.choice(["exp", "neg"]), x)

    def _binary(self, x: TensorView) -> TensorView:
        like = [t for t in self.pool if t.domain.shape == x.domain.shape]
        other = self.rng.choice(like)
        if self.rng.random() < 0.4 and x.rank:
            other = self.b.reduce("sum", other, [x.rank - 1], keepdim=True)
        return op(self.b, "add", x, other)

    def _cut(self, x: TensorView) -> TensorView:
        return self.b.segment_set(op(self.b, "sin", x))

    def _slice(self, x: TensorView) -> TensorView:
        shape, k = x.domain.shape, self.rng.randrange(x.rank)
        start, end = [0] * x.rank, list(shape)
        match self.rng.randrange(4):
            case 0:
                start[k], end[k] = 1, 4
            case 1:
                end[k] = shape[k] - 1
            case 2:
                start[k] = 2
            case 3:
                end[k] = shape[k] // 2
        return self.b.slice(x, start, end)

    def _pad(self, x: TensorView) -> TensorView:
        return self.b.pad(x, [self.rng.randrange(3), self.rng.randrange(3)])

    def _cat(self, x: TensorView) -> TensorView:
        like = [t for t in self.pool if (t.domain.shape, t.dtype) == (x.domain.shape, x.dtype)]
        return self.b.cat([x, self.rng.choice(like)], self.rng.randrange(x.rank))

    def _fold(self, x: TensorView) -> TensorView:
        k = self.rng.randrange(x.rank)
        return self.b.reduce("sum", x, [k], keepdim=self.rng.random() < 0.5)

    def _view(self, x: TensorView) -> TensorView:
        if self.rng.random() < 0.5:
            return self.b.reshape(x, [-1])
        return self.b.permute(x, self.rng.sample(range(x.rank), x.rank))

    def _select(self, x: TensorView) -> TensorView:
        index = self.b.tensor([self.rng.choice([-1, 5])], Int)
        return self.b.gather("index_select", x, self.rng.randrange(x.rank), index)


def concrete(
    compiled: CompiledFusion, open_plan: SegmentedFusion, sizes: dict[str, int]
) -> SegmentedFusion:
    """The plan for fake inputs of these sizes."""
    assert open_plan.sizes is not None
    of_place = {p: n for n, places in open_plan.sizes.places.items() for p in places}
    inputs = []
    with FakeTensorMode():
        for v, planned in zip(compiled.fusion.inputs, open_plan.fusion.inputs, strict=True):
            assert isinstance(planned, TensorView)
            assert not isinstance(v, Scalar)
            shape = [
                sizes[of_place[f"{planned.name}.size({k})"]]
                if f"{planned.name}.size({k})" in of_place
                else evaluated(dim.size if isinstance(dim.size, int) else 0, sizes)
                for k, dim in enumerate(planned.domain.root)
            ]
            inputs.append(torch.empty(shape, dtype=v.dtype.torch))
    return compiled.plan(inputs)


@blocks(400, 100, always=100)
def test_formulas_are_the_bytes_of_concrete_plans(first: int) -> None:
    compared = planned = 0
    for seed in range(first, first + 100):
        try:
            compiled = CompiledFusion(_Random(seed).b.build())
            plan = compiled.plan()
        except FuserValueError:
            # A random program may want the impossible of a size.
            continue
        rng = random.Random(seed)
        for largest in (12, 40, 5000):
            assert plan.sizes is not None
            sizes = {name: rng.randint(2, largest) for name in plan.sizes.values}
            if not all(c.holds(sizes) for c in plan.conditions):
                continue
            try:
                other = concrete(compiled, plan, sizes)
            except FuserValueError:
                # A slice that nothing reads still has to fit.
                continue
            planned += 1
            if shape_of(other) != shape_of(plan):
                continue
            compared += 1
            found = [evaluated(n, sizes) for n in counts(plan)]
            assert found == counts(other), f"seed {seed}, {sizes}\n{plan}\n{other}"
    assert planned > 150
    assert compared > 0.6 * planned
