"""Definitions that run: nvFuser's two APIs, symbolic sizes, updates, scripts and inspection."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import thunder_fuser
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition, version
from thunder_fuser.ir.printer import equal


def check(fd: FusionDefinition, inputs: list[Any], expected: list[torch.Tensor]) -> None:
    """Outputs within rounding of the expected ones, which are computed in float64."""
    outputs = fd.execute(inputs)
    assert len(outputs) == len(expected)
    for output, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output.double(), value.double(), rtol=1e-5, atol=1e-5)


def scaled_relu() -> FusionDefinition:
    """relu(x * s + w): x of any sizes, w of the last one, s a number."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True])
        w = fd.define_tensor([-1], [True], DataType.Float)
        s = fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.relu(fd.ops.add(fd.ops.mul(x, s), w)))
    return fd


def test_direct_form(device: torch.device) -> None:
    x, w = torch.randn(6, 8, device=device), torch.randn(8, device=device)
    check(scaled_relu(), [x, w, 0.7], [torch.relu(x.double() * 0.7 + w.double())])


def pointwise_parts_of_adaptive_layernorm(fd: FusionDefinition) -> None:
    """In the style of a dumped legacy definition: a name for every scalar and every vector."""
    T0 = fd.define_tensor(
        shape=[-1, -1, -1],
        contiguity=[None, None, True],
        dtype=DataType.BFloat16,
        is_cpu=False,
        stride_order=[2, 1, 0],
    )
    T1 = fd.define_tensor(
        shape=[-1, 1, -1],
        contiguity=[True, None, True],
        dtype=DataType.BFloat16,
        is_cpu=False,
        stride_order=[2, 1, 0],
    )
    T2 = fd.define_tensor(
        shape=[-1, -1],
        contiguity=[True, True],
        dtype=DataType.Float,
        is_cpu=False,
        stride_order=[1, 0],
    )
    T3 = fd.define_tensor(
        shape=[-1, -1, -1],
        contiguity=[True, True, True],
        dtype=DataType.BFloat16,
        is_cpu=False,
        stride_order=[2, 1, 0],
    )
    S4 = fd.define_scalar(3, dtype=DataType.Int)
    S5 = fd.define_scalar(4, dtype=DataType.Int)
    S6 = fd.define_scalar(1, dtype=DataType.Int)
    V7 = fd.define_vector([S4, S5, S6], dtype=DataType.Int)
    T8 = fd.ops.broadcast_in_dim(T2, shape=V7, broadcast_dims=[0, 1])
    S9 = fd.define_scalar(3, dtype=DataType.Int)
    S10 = fd.define_scalar(4, dtype=DataType.Int)
    S11 = fd.define_scalar(8, dtype=DataType.Int)
    V12 = fd.define_vector([S9, S10, S11], dtype=DataType.Int)
    T13 = fd.ops.broadcast_in_dim(T8, shape=V12, broadcast_dims=[0, 1, 2])
    T14 = fd.ops.cast(T3, dtype=DataType.Float)
    T15 = fd.ops.sub(T14, T13)
    T16 = fd.ops.cast(T0, dtype=DataType.Float)
    T17 = fd.ops.mul(T15, T16)
    T18 = fd.ops.cast(T1, dtype=DataType.Float)
    S19 = fd.define_scalar(1.00000, dtype=DataType.Double)
    T20 = fd.ops.add(S19, T18)
    T21 = fd.ops.broadcast_in_dim(T20, shape=V12, broadcast_dims=[0, 1, 2])
    S22 = fd.define_scalar(1024.00, dtype=DataType.Double)
    S23 = fd.ops.reciprocal(S22)
    T24 = fd.ops.mul(T17, T21)
    T25 = fd.ops.mul(T24, S23)
    T26 = fd.ops.cast(T25, dtype=DataType.BFloat16)
    fd.add_output(T25)
    fd.add_output(T26)


def test_legacy_form(device: torch.device) -> None:
    with FusionDefinition(id=7) as fd:
        pointwise_parts_of_adaptive_layernorm(fd)
    weight = torch.randn(8, device=device).bfloat16().as_strided((3, 4, 8), (0, 0, 1))
    scale, mean = torch.randn(3, 1, 8, device=device).bfloat16(), torch.randn(3, 4, device=device)
    x = torch.randn(3, 4, 8, device=device).bfloat16()
    exact = (x.double() - mean.double()[..., None]) * weight.double() * (1 + scale.double()) / 1024
    found = fd.execute([weight, scale, mean, x])
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found[1].double(), exact, rtol=2**-8, atol=1e-7)
    assert found[1].dtype is torch.bfloat16


def test_subclass_form(device: torch.device) -> None:
    class Doubled(FusionDefinition):
        def definition(self) -> None:
            self.add_output(self.ops.mul(self.define_tensor([-1], True), 2.0))

    fd = Doubled()
    x = torch.randn(5, device=device)
    check(fd, [x], [x.double() * 2])
    check(fd, [x[:3]], [x[:3].double() * 2])
    assert repr(fd).count("fd.ops.mul") == 1


def test_a_definition_needs_no_with_block() -> None:
    fd = FusionDefinition()
    fd.add_output(fd.ops.neg(fd.define_tensor([-1], True)))
    x = torch.randn(5)
    check(fd, [x], [-x.double()])
    with pytest.raises(FuserError, match="the definition is finished"):
        fd.define_tensor([3])


def test_kinds_of_inputs_are_compiled_once(device: torch.device) -> None:
    fd = scaled_relu()
    for rows, columns, number in ((6, 8, 0.5), (6, 8, -2.0), (5, 8, 0.5), (6, 8, 1.0), (1, 1, 2.0)):
        x, w = torch.randn(rows, columns, device=device), torch.randn(columns, device=device)
        check(fd, [x, w, number], [torch.relu(x.double() * number + w.double())])
    assert len(fd.compiled.executables) == 3


def test_vectors_of_sizes(device: torch.device) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], True)
        shape = fd.define_vector(2)
        fd.add_output(fd.ops.neg(fd.ops.reshape(x, shape)))
    x = torch.randn(2, 3, 4, device=device)
    for sizes in ([6, 4], (2, 12), [24, 1]):
        check(fd, [x, sizes], [-x.double().reshape(*sizes)])
    with pytest.raises(FuserValueError, match="24 elements become 25"):
        fd.execute([x, [5, 5]])


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0, 2), (1, 1), (7,)], ids=str)
def test_unusual_sizes(sizes: tuple[int, ...], device: torch.device) -> None:
    x = torch.randn(sizes, requires_grad=True, device=device)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.exp(t))
        fd.add_output(fd.ops.cat([fd.ops.broadcast(t, [True] + [False] * len(sizes))] * 2, 0))
    exact = x.detach().double()
    check(fd, [x], [exact.exp(), torch.stack([exact, exact])])
    assert not fd.execute([x])[0].requires_grad


def test_strides_of_all_kinds(device: torch.device) -> None:
    base = torch.randn(9, 10, 11, device=device)
    for x in (base, base.permute(2, 0, 1), base[1:, ::2, 3:], base[:1].expand(4, 10, 11)):
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.sin(fd.from_pytorch(x)))
        check(fd, [x], [x.double().sin()])


def test_factories_need_no_inputs() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.iota(5, 1.5, 0.5, DataType.Float))
        fd.add_output(fd.ops.full([2, 3], True, DataType.Bool))
    found = fd.execute([], device="cpu")
    assert found[0].tolist() == [1.5, 2.0, 2.5, 3.0, 3.5]
    assert found[1].tolist() == [[True] * 3] * 2
    assert found[0].device.type == "cpu"


# ---- outputs


def test_outputs_may_repeat_and_be_inputs(device: torch.device) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        y = fd.ops.relu(x)
        for value in (y, x, y):
            fd.add_output(value)
    x = torch.randn(6, device=device)
    first, second, third = fd.execute([x])
    assert second.data_ptr() == x.data_ptr()
    assert torch.equal(first, third)
    assert torch.equal(first, x.relu())


def test_views_share_the_inputs_memory(device: torch.device) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], True)
        fd.add_output(fd.ops.reshape(fd.ops.permute(x, [0, 1]), [24]))
        fd.add_output(fd.ops.slice(x, [1, 0], [3, 6]))
    x = torch.randn(4, 6, device=device)
    flat, rows = fd.execute([x])
    assert flat.data_ptr() == x.data_ptr()
    assert rows.data_ptr() == x[1:].data_ptr()
    assert torch.equal(rows, x[1:3])
    assert fd.plan().kernels == 0


def counter(visible: bool) -> FusionDefinition:
    """x += y, in place; also returned if visible."""
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1], True), fd.define_tensor([-1], True)
        z = fd.ops.add(x, y)
        if visible:
            fd.add_output(z)
        fd.add_output(z, alias_input=x)
        fd.add_output(fd.ops.neg(z))
    return fd


def test_updates_are_written_and_not_returned(device: torch.device) -> None:
    x, y = torch.randn(6, device=device), torch.randn(6, device=device)
    exact = x.double() + y.double()
    (negated,) = counter(False).execute([x, y])
    torch.testing.assert_close(x.double(), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(negated.double(), -exact, rtol=1e-6, atol=1e-6)


def test_updates_that_are_outputs_too_are_returned(device: torch.device) -> None:
    x, y = torch.randn(6, device=device), torch.randn(6, device=device)
    exact = x.double() + y.double()
    found, _ = counter(True).execute([x, y])
    assert found.data_ptr() == x.data_ptr()
    torch.testing.assert_close(x.double(), exact, rtol=1e-6, atol=1e-6)


def test_updates_must_not_touch_other_inputs() -> None:
    fd, x = counter(False), torch.zeros(12)
    fd.execute([x[:6], x[6:]])
    for y in (x[:6], x[5:11], x[:6].detach()):
        with pytest.raises(FuserValueError, match="overlapping output: input 0, T0"):
            fd.execute([x[:6], y])


def test_an_output_in_a_stride_order(device: torch.device) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1, -1], True)), [0, 1])
    x = torch.randn(3, 5, device=device)
    (y,) = fd.execute([x])
    assert y.stride() == (1, 3)
    assert torch.equal(y, -x)


# ---- mistakes


def test_nothing_defined() -> None:
    with pytest.raises(NotImplementedError, match=r"Fusion does not exist!"):
        FusionDefinition().execute([])
    with FusionDefinition() as fd:
        fd.define_tensor([3])
    assert fd.validate_definition() == (
        False,
        "Fusion is empty! Give it an output: fd.add_output(...)",
    )
    with pytest.raises(NotImplementedError, match=r"Fusion is empty!"):
        fd.execute([torch.zeros(3)])
    assert scaled_relu().validate_definition() == (True, "")


def test_a_finished_definition_stays_finished() -> None:
    fd = scaled_relu()
    with pytest.raises(FuserError, match="the definition is finished"):
        fd.define_scalar(1.0)
    with pytest.raises(FuserError, match="this definition is finished"), fd:
        pass


def test_exceptions_leave_the_with_block() -> None:
    with pytest.raises(KeyError), FusionDefinition():
        raise KeyError("x")


def test_bad_inputs_are_reported_before_compiling() -> None:
    fd, x, w = scaled_relu(), torch.zeros(4, 8), torch.zeros(8)
    for inputs, message in (
        ([x.half(), w, 1.0], "Expected input 0, T0, to be bound to a tensor of dtype Float"),
        ([x, w], "the fusion takes 3 inputs (T0, T1, S2), but 2 were given"),
        ([x, torch.zeros(7), 1.0], "8 (dimension 1 of input 0, T0) and 7 (dimension 0 of input 1"),
        ([x.t(), torch.zeros(4), 1.0], "dimension 1 is not contiguous as the definition promised"),
        ([x, w, x], "Expected input 2, S2, to be a scalar but got Float tensor of rank 2"),
        ([x, w, None], "Expected input 2, S2, to be a scalar but got a NoneType"),
    ):
        with pytest.raises(FuserError, match=re.escape(message)):
            fd.execute(inputs)
    with pytest.raises(FuserTypeError, match="inputs: expected a list, got Tensor"):
        fd.execute(x)
    with pytest.raises(FuserValueError, match="device is cuda:3 but input 0, T0, is on cpu"):
        fd.execute([x, w, 1.0], device=3)
    assert fd.compiled.executables == ()


# ---- inspection


def test_plans_and_sources_need_no_tensors() -> None:
    fd = scaled_relu()
    with FakeTensorMode():
        inputs = [torch.empty(64, 32, device="cuda"), torch.empty(32, device="cuda"), 1.0]
    plan = fd.plan(inputs)
    assert (plan.kernels, plan.bytes) == (1, 4 * (2 * 64 * 32 + 32))
    (kernel,) = fd.kernels(inputs)
    assert kernel.name in fd.cuda_code_for(inputs)
    assert "__global__" in fd.cuda_code_for(inputs)
    assert str(fd.plan().bytes) == "8*i0*i1 + 4*i1"
    with pytest.raises(FuserError, match="nothing is compiled yet"):
        fd.last_cuda_code()


def test_last_source() -> None:
    fd, inputs = scaled_relu(), [torch.zeros(4, 8), torch.zeros(8), 1.0]
    fd.execute(inputs)
    assert fd.last_cuda_code() == fd.cuda_code_for(inputs)


def test_profile() -> None:
    fd, inputs = scaled_relu(), [torch.zeros(64, 8), torch.zeros(8), 1.0]
    with pytest.raises(FuserError, match="nothing is measured yet"):
        fd.profile()
    fd.execute(inputs, profile=True)
    profile = fd.profile()
    assert profile.kernels == tuple(k.name for k in fd.kernels(inputs))
    assert profile.bytes == fd.plan(inputs).bytes
    assert profile.effective_bandwidth_gbs * 1e6 * profile.kernel_time_ms == pytest.approx(
        profile.bytes
    )


def test_repr_is_the_definition() -> None:
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(scaled_relu()), names)
    with FusionDefinition() as fd:
        names["nvfuser_fusion"](fd)
    assert equal(fd.fusion, scaled_relu().fusion)


# ---- scripts


def test_scripts_reproduce() -> None:
    inputs = [torch.randn(4, 9)[:, :8], torch.randn(33)[1:9], 0.1]
    with FusionDefinition() as fd:
        x, w = (fd.from_pytorch(t) for t in inputs[:2])
        fd.add_output(fd.ops.add(fd.ops.mul(x, fd.define_scalar(DataType.Double)), w))
    script = fd.repro_script_for(inputs)
    names: dict[str, Any] = {}
    exec(script, names)
    made = names["inputs"]
    for given, again in zip(inputs[:2], made[:2], strict=True):
        assert again.shape == given.shape
        assert again.stride() == given.stride()
        assert again.dtype == given.dtype
        assert again.data_ptr() % 64 == given.data_ptr() % 64
    assert made[2] == 0.1
    assert len(names["fd"].compiled.executables) == 1
    assert equal(names["fd"].fusion, fd.fusion)


@pytest.mark.parametrize(
    "dtype", [d for d in DataType if d is not DataType.Null], ids=lambda d: d.name
)
def test_scripts_make_inputs_of_every_dtype(dtype: DataType) -> None:
    x = torch.zeros(3, 4, dtype=dtype.torch)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.set(fd.from_pytorch(x.t())))
    names: dict[str, Any] = {}
    exec(fd.getReproString([x.t()]), names)
    (made,) = names["inputs"]
    assert (made.dtype, made.shape, made.stride()) == (x.dtype, (4, 3), (1, 4))


def test_last_script() -> None:
    fd, inputs = scaled_relu(), [torch.zeros(4, 8), torch.zeros(8), 1.5]
    with pytest.raises(FuserError, match="no inputs are kept"):
        fd.last_repro_script()
    fd.execute(inputs, save_repro_inputs=True)
    assert fd.fake_inputs is not None
    assert [isinstance(x, FakeTensor) for x in fd.fake_inputs] == [True, True, False]
    assert 'make_tensor((4, 8), dtype=torch.float32, device="cpu")' in fd.last_repro_script()
    assert "    1.5,\n" in fd.last_repro_script()
    assert fd.repro_script_for().endswith("    nvfuser_fusion(fd)\n")


# ---- validation


def test_validation_accepts_what_is_right(device: torch.device) -> None:
    x, w = torch.randn(6, 8, device=device), torch.randn(8, device=device)
    fd = scaled_relu()
    (y,) = fd.validate([x, w, 0.3])
    assert torch.equal(y, fd.execute([x, w, 0.3])[0])
    fd.validate([x, w, 0.3], [torch.relu(x * 0.3 + w)])
    counter(True).validate([torch.randn(6, device=device), torch.randn(6, device=device)])


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (torch.ones(4), "1 of 4 elements of output 0 differ; at (2,): got 1.0"),
        (torch.ones(5), "output 0 has sizes [4], expected [5]"),
    ],
)
def test_validation_names_what_is_wrong(reference: torch.Tensor, message: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([4], True)))
    if reference.numel() == 4:
        reference[2] = 1.001
    with pytest.raises(FuserError, match=re.escape(message)):
        fd.validate([torch.zeros(4)], [reference])
    with pytest.raises(FuserError, match="0 reference outputs for 1 outputs"):
        fd.validate([torch.zeros(4)], [])


def test_public_names() -> None:
    assert thunder_fuser.FusionDefinition is FusionDefinition
    assert thunder_fuser.DataType is DataType
    assert tuple(map(int, version().split("."))) >= (0, 2, 34)


def test_attributes_can_be_set() -> None:
    fd = scaled_relu()
    fd._selected_device = 0  # type: ignore[attr-defined]
    x, w = torch.zeros(4, 8), torch.zeros(8)
    fd.execute([x, w, 1.0], device=None, _enable_options=["id_model"], _disable_options=[])
