"""Binding a call's inputs: every mistake has its message, and equal situations have equal keys."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.generator import random_case
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, Origin
from thunder_fuser.ir.rebuild import specialise
from thunder_fuser.runtime.binding.bind import bind, check_updates, key_of, size_inputs
from thunder_fuser.runtime.binding.guards import guard_of, no_guard

CPU = torch.device("cpu")


def copy_of(sizes: Sequence[int], dtype: DataType = DataType.Float, **how: Any) -> Fusion:
    """A copy of one input."""
    b = FusionBuilder()
    b.output(b.set(b.tensor(sizes, dtype, **how)))
    return b.build()


def sum_of(*shapes: Sequence[int], is_cpu: Sequence[bool] = ()) -> Fusion:
    """The sum of inputs of these shapes."""
    b = FusionBuilder()
    marks = [*is_cpu, *([False] * len(shapes))]
    first, *rest = (
        b.tensor(s, DataType.Float, is_cpu=c) for s, c in zip(shapes, marks, strict=False)
    )
    for other in rest:
        b.origin = Origin("add", "model.py", 12)
        first = b.pointwise("add", first, other)
    b.output(first)
    return b.build()


def scaled(dtype: DataType) -> Fusion:
    """An input times a number of this dtype."""
    b = FusionBuilder()
    x, s = b.tensor([4], DataType.Float), b.scalar(None, dtype)
    b.output(b.pointwise("mul", x, s) if not dtype.is_complex else b.pointwise("eq", x, s))
    return b.build()


def updated(sizes: Sequence[int] = (4, 4)) -> Fusion:
    """T0 += T1, written into T0; strides are free."""
    b = FusionBuilder()
    x, y = (b.tensor(sizes, DataType.Float, contiguity=[False] * len(sizes)) for _ in range(2))
    b.output(b.pointwise("add", x, y), x)
    return b.build()


def fake(*sizes: int, device: str = "cuda") -> torch.Tensor:
    # FakeTensorMode allocates on a GPU where there are some, and this one may have one less.
    with mock.patch("torch.cuda.is_available", return_value=False), FakeTensorMode():
        return torch.empty(sizes, device=device)


class Wrapped(torch.Tensor):
    """Some subclass."""


x, f16 = torch.zeros(4, 8), torch.zeros(4, 8, dtype=torch.float16)
number, row = torch.zeros(()), torch.zeros(8)

MISTAKES: dict[str, tuple[Fusion, list[Any], type[FuserError], str]] = {
    "dtype": (copy_of([4, 8]), [f16], FuserTypeError,
        "Expected input 0, T0, to be bound to a tensor of dtype Float, but got a tensor of dtype "
        "Half; pass x.to(torch.float32), or define the input with the dtype that it has"),
    "unknown dtype": (
        copy_of([4, 8]), [torch.zeros(4, 8, dtype=torch.float8_e4m3fnuz)], FuserTypeError,
        "Expected input 0, T0, to be bound to a tensor of dtype Float, but got a tensor of dtype "
        "torch.float8_e4m3fnuz"),
    "rank": (copy_of([4, 8]), [x[0]], FuserValueError,
        "Expected input 0, T0, to be bound to a tensor of rank 2, but got a tensor of rank 1 "
        "(sizes [8])"),
    "static size": (copy_of([4, 9]), [x], FuserValueError,
        "Tried to bind to a constant value: 9 as 8 in dimension 1 of input 0, T0 (sizes [4, 8]); "
        "define the dimension as -1 to accept any size"),
    "size 1": (copy_of([4, 1]), [x], FuserValueError,
        "Tried to bind to a constant value: 1 as 8 in dimension 1 of input 0, T0 (sizes [4, 8]); "
        "a dimension defined as 1 broadcasts; define"),
    "disagreement": (sum_of([-1, 8], [-1, 8]), [x, torch.zeros(5, 8)], FuserValueError,
        "When trying to propagate constant tensor sizes through the graph a conflict was found "
        "with 2 different sizes across dimensions that are expected to match: add at model.py:12: "
        "4 (dimension 0 of input 0, T0) and 5 (dimension 0 of input 1, T1)"),
    "no broadcast of what could be anything": (
        sum_of([-1, 8], [-1, 8]), [x, torch.zeros(1, 8)], FuserValueError,
        "4 (dimension 0 of input 0, T0) and 1 (dimension 0 of input 1, T1)"),
    "disagreement with the definition": (
        sum_of([-1], [8]), [torch.zeros(7), torch.zeros(8)], FuserValueError,
        "add at model.py:12: 7 (dimension 0 of input 0, T0) and 8 (dimension 0 of T1, "
        "in the definition)"),
    "not expanded": (copy_of([4, 8], expanded=[True, False]), [x], FuserValueError,
        "input 0, T0: IterDomain b1->4 has expanded extent but input tensor has size 4 and "
        "stride 8 in dimension 0; pass x.expand(...)"),
    "not contiguous": (copy_of([4, 8]), [torch.zeros(8, 4).t()], FuserValueError,
        "input 0, T0: stride mismatch with contiguity info: dimension 1 is not contiguous as the "
        "definition promised (contiguity=[True, True], sizes [4, 8], strides [1, 4], expected "
        "stride 1); pass x.contiguous()"),
    "gap": (copy_of([-1, -1]), [torch.zeros(4, 9)[:, :8]], FuserValueError,
        "dimension 0 is not contiguous as the definition promised (contiguity=[True, True], "
        "sizes [4, 8], strides [9, 1], expected stride 8)"),
    "not contiguous in stride order": (copy_of([4, 8], allocation=[1, 0]), [x], FuserValueError,
        "dimension 0 is not contiguous as the definition promised (contiguity=[True, True], "
        "sizes [4, 8], strides [8, 1], expected stride 1)"),
    "too few": (sum_of([4, 8], [8]), [x], FuserValueError,
        "Inputs were not set up correctly: the fusion takes 2 inputs (T0, T1), but 1 were given"),
    "too many": (copy_of([4, 8]), [x, x], FuserValueError,
        "the fusion takes 1 inputs (T0), but 2 were given"),
    "number for tensor": (copy_of([4, 8]), [2], FuserTypeError,
        "Expected input 0, T0, to be an at::Tensor but got scalar 2; pass a tensor, or define"),
    "string for tensor": (copy_of([4, 8]), ["x"], FuserTypeError, "but got a str"),
    "tensor for number": (scaled(DataType.Double), [torch.zeros(4), x], FuserTypeError,
        "Expected input 1, S1, to be a scalar but got Float tensor of rank 2; pass x.item()"),
    "string for number": (scaled(DataType.Double), [torch.zeros(4), "2"], FuserTypeError,
        "Expected input 1, S1, to be a scalar but got a str; pass a Python number"),
    "complex for double": (scaled(DataType.Double), [torch.zeros(4), 2 + 1j], FuserTypeError,
        "Scalar value (2+1j) is not compatible with the expected data type: Double (input 1, S1)"),
    "double for int": (scaled(DataType.Int), [torch.zeros(4), 1.5], FuserTypeError,
        "Scalar value 1.5 is not compatible with the expected data type: Int"),
    "int for bool": (scaled(DataType.Bool), [torch.zeros(4), 1], FuserTypeError,
        "Scalar value 1 is not compatible with the expected data type: Bool"),
    "int too wide": (scaled(DataType.Int32), [torch.zeros(4), 2**31], FuserTypeError,
        "Scalar value 2147483648 is not compatible with the expected data type: Int32"),
    "meta": (copy_of([4, 8]), [x.to("meta")], FuserTypeError,
        "input 0, T0, is a meta tensor, which has no elements; only plain tensors can be read"),
    "sparse": (copy_of([4, 8]), [x.to_sparse()], FuserTypeError,
        "input 0, T0, is a tensor of layout torch.sparse_coo; only plain tensors can be read: "
        "pass x.to_dense()"),
    "quantized": (copy_of([4, 8]), [torch.quantize_per_tensor(x, 1.0, 0, torch.quint8)],
        FuserTypeError, "input 0, T0, is a quantized tensor"),
    "subclass": (copy_of([4, 8]), [x.as_subclass(Wrapped)], FuserTypeError,
        "input 0, T0, is a Wrapped, a subclass of torch.Tensor; only plain tensors"),
    "conj": (copy_of([4], DataType.ComplexFloat), [torch.zeros(4, dtype=torch.complex64).conj()],
        FuserTypeError, "is a lazily conjugated tensor; only plain tensors can be read: pass "
        "x.resolve_conj()"),
    "neg": (copy_of([4]), [torch.zeros(4, dtype=torch.complex64).conj().imag], FuserTypeError,
        "is a lazily negated tensor; only plain tensors can be read: pass x.resolve_neg()"),
    "devices": (sum_of([4, 8], [8]), [fake(4, 8), x[0]], FuserValueError,
        "input 0, T0, is on cuda:0 but input 1, T1, is on cpu; move all tensors to one device"),
    "undeclared CPU scalar": (sum_of([4, 8], []), [fake(4, 8), number], FuserValueError,
        "or define CPU scalars with is_cpu=True (from_pytorch does)"),
    "two GPUs": (sum_of([4, 8], [8]), [fake(4, 8, device="cuda:0"), fake(8, device="cuda:1")],
        FuserValueError, "input 0, T0, is on cuda:0 but input 1, T1, is on cuda:1"),
    "other device": (copy_of([4, 8]), [fake(4, 8, device="xpu")], FuserValueError,
        "input 0, T0, is on xpu:0; kernels run on cpu and cuda devices only"),
    "CPU scalar on a GPU": (
        sum_of([4, 8], [], is_cpu=[False, True]), [fake(4, 8), fake()], FuserValueError,
        "input 1, T1, is defined with is_cpu=True but got a tensor on cuda:0; pass x.cpu()"),
    "update of expanded memory": (
        updated([4, 4]), [torch.zeros(4, 1).expand(4, 4), torch.zeros(4, 4)], FuserValueError,
        "overlapping output: input 0, T0, is updated in place but several of its elements share "
        "memory (sizes [4, 4], strides [1, 0]); pass x.contiguous()"),
    "update of another input": (updated([4, 8]), [x, x], FuserValueError,
        "overlapping output: input 0, T0, is updated in place and shares memory with input 1, T1; "
        "pass a clone of one"),
    "update of part of another input": (
        updated([4, 4]), [torch.as_strided(x, (4, 4), (8, 1), 2), x[:, 4:]], FuserValueError,
        "overlapping output: input 0, T0, is updated in place and shares memory with input 1, T1"),
    "update of different sizes": (
        updated([-1, 4]), [torch.zeros(3, 4), torch.zeros(5, 4)], FuserValueError,
        "3 (dimension 0 of input 0, T0) and 5 (dimension 0 of input 1, T1)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake: str) -> None:
    fusion, inputs, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=re.escape(message)) as caught:
        bind(fusion, inputs)
    assert isinstance(caught.value, FuserError)


# ---- what is right


def test_sizes_come_from_inputs_and_numbers() -> None:
    b = FusionBuilder()
    t, n = b.tensor([-1, 4, -1], DataType.Float), b.scalar(None, DataType.Int)
    flat = b.reshape(t, [n, -1])
    b.output(b.pointwise("add", flat, b.scalar(None, DataType.Double)))
    fusion = b.build()
    binding = bind(fusion, [torch.zeros(6, 4, 5), 8, 0.5])
    assert {str(k): v for k, v in binding.sizes.items()} == {"T0_0": 6, "T0_2": 5, "S1": 8}
    assert specialise(fusion, binding.sizes).outputs[0].sizes == (8, 15)
    assert size_inputs(fusion) == (1,)


def test_sizes_that_one_variable_ties_together() -> None:
    b = FusionBuilder()
    t = b.tensor([-1], DataType.Float)
    n = t.domain.shape[0]
    b.output(b.pointwise("add", t, b.tensor([n], DataType.Float)))
    assert list(bind(b.build(), [torch.zeros(3), torch.zeros(3)]).sizes.values()) == [3]
    with pytest.raises(FuserValueError, match=r"one size of the definition: 3 .* and 4 "):
        bind(b.build(), [torch.zeros(3), torch.zeros(4)])


def test_a_size_cannot_be_negative() -> None:
    b = FusionBuilder()
    n = b.scalar(None, DataType.Int)
    b.output(b.full([n], 1.0, DataType.Float))
    with pytest.raises(
        FuserValueError,
        match=r"full: dimension 0 of T3 has -3 elements .input 0, S0.; expected at least 0",
    ):
        bind(b.build(), [-3], CPU)


def test_a_slice_ends_where_its_dimension_does() -> None:
    b = FusionBuilder()
    x = b.tensor([-1], DataType.Float)
    b.output(b.slice(x, [1], [6]))
    for n, width in ((9, 5), (6, 5), (4, 3), (1, 0), (0, 0)):
        fusion = specialise(b.build(), bind(b.build(), [torch.zeros(n)]).sizes)
        assert fusion.outputs[0].sizes == (width,)
    b.origin = Origin("slice", "model.py", 7)
    b.output(b.slice(x, [3], [x.domain.shape[0] - 2]))
    with pytest.raises(
        FuserValueError, match=r"slice at model.py:7: dimension 0 .* has 4 .* from 3 to 2"
    ):
        bind(b.build(), [torch.zeros(4)])


def test_tensors_side_by_side_agree_in_the_other_dimensions() -> None:
    b = FusionBuilder()
    b.origin = Origin("cat", "model.py", 7)
    b.output(b.cat([b.tensor([-1, -1], DataType.Float) for _ in range(2)], 0))
    assert len(bind(b.build(), [torch.zeros(2, 3), torch.zeros(4, 3)]).sizes) == 4
    message = r"cat at model\.py:7: 3 \(dimension 1 of input 0, T0\) and 5 \(dimension 1 of input 1"
    with pytest.raises(FuserValueError, match=message):
        bind(b.build(), [torch.zeros(2, 3), torch.zeros(4, 5)])


def test_a_reshape_keeps_all_elements() -> None:
    b = FusionBuilder()
    n = b.scalar(None, DataType.Int)
    b.output(b.reshape(b.tensor([-1, 4], DataType.Float), [n, -1]))
    assert len(bind(b.build(), [8, x[:, :4].contiguous()]).sizes) == 2
    with pytest.raises(FuserValueError, match=r"from \[4, 4\] to \[5, 3\]: 16 elements become 15"):
        bind(b.build(), [5, x[:, :4].contiguous()])


@pytest.mark.parametrize(
    ("tensor", "fusion", "layout"),
    [
        (torch.zeros(4, 8), copy_of([-1, -1]), Layout((8, 1), 64)),
        (torch.zeros(4, 9)[:, :8], copy_of([-1, -1], contiguity=[False, True]), Layout((9, 1), 64)),
        (torch.zeros(33)[1:].view(4, 8), copy_of([4, 8]), Layout((8, 1), 4)),
        (torch.zeros(36)[2:34].view(4, 8), copy_of([4, 8]), Layout((8, 1), 8)),
        (row.expand(4, 8), copy_of([4, 8], expanded=[True, False]), Layout((0, 1), 64)),
        (row.expand(4, 8), copy_of([4, 8], contiguity=[False, True]), Layout((0, 1), 64)),
        # No index multiplies these strides: they are one situation.
        (torch.zeros(4, 1), copy_of([4, 1]), Layout((1, 0), 64)),
        (torch.zeros(4, 7)[:, :1], copy_of([4, 1], contiguity=[False, None]), Layout((7, 0), 64)),
        (torch.zeros(1, 9)[:, :8], copy_of([-1, -1]), Layout((0, 1), 64)),
        (torch.zeros(8, 0, 3), copy_of([-1, -1, -1]), Layout((0, 0, 0), 64)),
        (torch.zeros(3, 0, 8).permute(2, 1, 0), copy_of([-1, -1, -1]), Layout((0, 0, 0), 64)),
        (torch.zeros(()), copy_of([]), Layout((), 64)),
        (torch.zeros(4, requires_grad=True), copy_of([4]), Layout((1,), 64)),
        (torch.nn.Parameter(torch.zeros(4)), copy_of([4]), Layout((1,), 64)),
    ],
)  # fmt: skip
def test_layouts(tensor: torch.Tensor, fusion: Fusion, layout: Layout) -> None:
    assert bind(fusion, [tensor]).layouts == (layout,)


def test_fake_tensors_bind_and_may_overlap() -> None:
    t = fake(4, 4)
    binding = bind(updated(), [t, t])
    assert binding.layouts == (Layout((4, 1), 64),) * 2
    assert binding.device == torch.device("cuda:0")


def test_an_input_with_a_program_binds_to_its_root() -> None:
    b = FusionBuilder()
    like = b.broadcast_in_dim(b.tensor([8], DataType.Float), [4, 8], [1])
    folded = FusionBuilder()
    folded.output(folded.set(folded.adopt_input(like, like.domain.root)))
    assert bind(folded.build(), [torch.zeros(8)]).layouts == (Layout((1,), 64),)
    with pytest.raises(FuserValueError, match="rank 1, but got a tensor of rank 2"):
        bind(folded.build(), [torch.zeros(4, 8)])


def test_devices() -> None:
    factory = FusionBuilder()
    factory.output(factory.full([4], 1.0, DataType.Float))
    gpu = torch.device("cuda", 1)
    assert bind(factory.build(), [], gpu).device == gpu
    scalar = sum_of([4], [], is_cpu=[False, True])
    assert bind(scalar, [fake(4, device="cuda:1"), number]).device == gpu
    assert bind(scalar, [torch.zeros(4), number]).device == CPU
    assert bind(copy_of([4]), [torch.zeros(4)], CPU).device == CPU
    with pytest.raises(FuserValueError, match="device is cuda:1 but input 0, T0, is on cpu"):
        bind(copy_of([4]), [torch.zeros(4)], gpu)


def test_updates_are_checked_at_every_call() -> None:
    fusion, a = updated(), torch.zeros(4, 4)
    check_updates(fusion, [a, torch.zeros(4, 4)])
    halves = torch.zeros(4, 8)
    check_updates(fusion, [halves[:, :4], halves[:, 4:]])
    with pytest.raises(FuserValueError, match="overlapping output"):
        check_updates(fusion, [a, a.detach()])


def test_generated_fusions_bind() -> None:
    for seed in range(60):
        case = random_case(seed, steps=4)
        binding = bind(case.fusion, case.inputs)
        assert binding.sizes == {}
        assert len(binding.layouts) == len(case.fusion.tensor_inputs)


# ---- keys

DIFFERENT = {
    "shape": torch.zeros(8, 4),
    "rank": torch.zeros(4, 8, 1),
    "strides": torch.zeros(8, 4).t(),
    "dtype": torch.zeros(4, 8, dtype=torch.int32),
    "alignment": torch.zeros(33)[1:].view(4, 8),
    "device": fake(4, 8),
    "fake": fake(4, 8, device="cpu"),
    "meta": torch.zeros(4, 8, device="meta"),
    "sparse": torch.zeros(4, 8).to_sparse(),
    "negated": torch.zeros(4, 8, dtype=torch.complex64).conj().imag,
    "subclass": torch.zeros(4, 8).as_subclass(Wrapped),
    "number": 2.0,
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_keys_differ_and_guards_refuse(what: str) -> None:
    known, other = torch.zeros(4, 8), DIFFERENT[what]
    assert key_of([other]) != key_of([known])
    hash(key_of([other]))
    assert not guard_of([known], ())([other])
    assert not guard_of([known, 2.0], ())([other, 2.0])


def test_guards_let_pass_what_has_the_same_key() -> None:
    first = [torch.zeros(4, 8), 2.0, torch.zeros(33)[1:], torch.zeros(64)[4:20]]
    alike = [torch.ones(4, 8), 3.0, torch.ones(65)[33:], torch.zeros(64)[20:36]]
    guard = guard_of(first, ())
    assert key_of(first) == key_of(alike)
    assert all(map(guard, (first, alike)))
    others: list[list[Any]] = [
        [*alike[:2], alike[3][:8], alike[3]],  # a size
        [alike[0], 3, *alike[2:]],  # a type of number
        [alike[0], alike[0], *alike[2:]],
        [*alike[:3], torch.zeros(64)[8:24]],  # an alignment, better
        [*alike[:3], torch.zeros(64)[2:18]],  # and worse
        alike[:3],
        [*alike, 1.0],
        [],
    ]
    for inputs in others:
        assert key_of(inputs) != key_of(first)
        assert not guard(inputs)
    # Of sizes among the numbers only the key knows.
    assert not guard_of([first[0], 4], [1])([first[0], 4])


def test_guards_of_updates_let_pass_what_lies_apart() -> None:
    whole = torch.zeros(256)
    first = [whole[:16], 2.0, whole[16:32], torch.zeros(0)]
    for updated in ([0], [2], [0, 2]):
        guard = guard_of(first, (), updated)
        assert guard(first)
        assert guard([whole[64:80], 3.0, whole[32:48], torch.zeros(0)])
        assert not guard([whole[64:80], 3.0, whole[64:80], torch.zeros(0)])
        assert guard_of(first, ())([whole[64:80], 3.0, whole[64:80], torch.zeros(0)])
    # What only reads may share memory, with any number of tensors between.
    many = [*whole.split(16)]
    again = [part[:] for part in many]
    guard = guard_of(many, (), [1, 5])
    assert guard([*many[:8], *many[8:12], *again[8:12]])
    assert not any(guard([*many[:8], again[j], *many[9:]]) for j in (1, 5))
    assert not any(guard([*many[:j], again[9], *many[j + 1 :]]) for j in (1, 5))
    for k in range(8):
        assert guard_of(many, (), [5])([*many[:8], again[k], *many[9:]]) is (k != 5)


def test_guards_of_updates_let_pass_no_range_that_meets_that_of_an_update() -> None:
    """Random places in one storage: exactly those whose address ranges are apart pass."""
    rng = random.Random(0)
    passed = 0
    for _ in range(300):
        count = rng.randint(2, 6)
        lengths = [16 * rng.randint(1, 3) for _ in range(count)]
        updated = {k for k in range(count) if rng.random() < 0.4}
        guard = guard_of([torch.zeros(n) for n in lengths], (), updated)
        whole = torch.zeros(16 * 24)
        starts = [16 * rng.randint(0, 20) for _ in range(count)]  # of the alignment of the whole
        views = [whole[a : a + n] for a, n in zip(starts, lengths, strict=True)]
        ranges = [(a, a + n) for a, n in zip(starts, lengths, strict=True)]
        meets = any(
            ranges[k][0] < ranges[j][1] and ranges[j][0] < ranges[k][1]
            for k in updated
            for j in range(count)
            if j != k
        )
        assert guard(views) is not meets, (ranges, updated)
        passed += not meets
    assert 50 < passed < 250


def test_guards_of_updates_know_the_whole_range_of_a_view() -> None:
    whole = torch.zeros(64, 8)
    left, right = whole[:32, :4], whole[32:, 4:]
    guard = guard_of([left, right], (), [0])
    assert guard([left, right])
    # Interleaved ranges without a common element are for `check_updates`.
    assert not guard([whole[:32, :4], whole[:32, 4:]])
    assert guard_of([left, whole[:32, 4:]], (), [0]) is no_guard


def test_guards_of_updates_tell_inference_tensors() -> None:
    plain, other = torch.zeros(8), torch.zeros(8)
    with torch.inference_mode():
        made = torch.zeros(8)
        guard = guard_of([made, other], (), [0])
        assert guard([made, other])
    assert not guard([made, other])
    assert not guard_of([plain, other], (), [0])([made, other])


def test_keys_agree() -> None:
    a, b = torch.zeros(4, 8), torch.nn.Parameter(torch.ones(4, 8))
    assert key_of([a, 2.0]) == key_of([b, 3.0])
    assert key_of([a, 2.0]) != key_of([a, 3])
    assert key_of([a, 2, 3], [2]) == key_of([a, 5, 3], [2])
    assert key_of([a, 2, 3], [2]) != key_of([a, 2, 4], [2])


def test_bindings_share_kernels_where_strides_do_not_matter() -> None:
    fusion = copy_of([-1, -1], contiguity=[False, False])
    wide, narrow = torch.zeros(4, 7)[:, :1], torch.zeros(4, 7).t()[:1].t()
    assert bind(fusion, [wide]).key == bind(fusion, [narrow]).key
    assert bind(fusion, [wide]).key != bind(fusion, [torch.zeros(4, 1)]).key
