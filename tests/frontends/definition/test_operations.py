"""fd.ops: every operation of the table by name, operators, and errors with the user's line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontends.definition.rebuilding import executed
from thunder_fuser.errors import FuserError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition, Scalar, Tensor, ops
from thunder_fuser.ir.dtypes import Category
from thunder_fuser.ir.fusion import Origin
from thunder_fuser.ir.printer import equal, to_python
from thunder_fuser.ir.tables.pointwise import TABLE, Op

FLOAT, INT, BOOL = DataType.Float, DataType.Int, DataType.Bool


def operand_dtype(row: Op) -> DataType:
    """A dtype that the operation takes."""
    for category, dtype in (
        (Category.FLOAT, FLOAT), (Category.INT, INT), (Category.COMPLEX, DataType.ComplexFloat),
    ):  # fmt: skip
        if category in row.accepts:
            return dtype
    return BOOL


@pytest.mark.parametrize(
    "row", [r for r in TABLE.values() if r.name != "cast"], ids=lambda r: r.name
)
def test_every_pointwise_operation_has_its_name(row: Op) -> None:
    with FusionDefinition() as fd:
        operands = [
            fd.define_tensor([3], True, operand_dtype(row) if k in row.promoted else BOOL)
            for k in range(row.arity)
        ]
        y = getattr(fd.ops, row.name)(*operands)
        fd.add_output(y)
    (expr,) = fd.fusion.exprs
    assert expr.op == row.name
    assert isinstance(y, Tensor)
    assert y.val is expr.output
    assert f"fd.ops.{row.name}(T0" in repr(fd)
    assert equal(executed(repr(fd)), fd.fusion)


def test_operations_can_be_listed_and_explained() -> None:
    fd = FusionDefinition()
    assert {*TABLE, "reshape", "cat", "iota", "view"} <= set(dir(fd.ops))
    assert "elementwise" in inspect.getdoc(fd.ops.lerp)
    assert list(inspect.signature(fd.ops.permute).parameters) == ["arg", "dims"]
    assert hasattr(fd.ops, "relu")
    assert not hasattr(fd.ops, "nv_block_quantize")


@pytest.mark.parametrize(
    ("name", "kind", "instead"),
    [("nv_block_quantize", "a quantisation to 4-bit floats", "the library that quantises"),
     ("cutlass_nvfp4_grouped_mm", "a matrix product of scaled low-", "torch._scaled_mm")],
)  # fmt: skip
def test_what_is_not_there_yet_says_what_it_is_and_what_to_use(
    name: str, kind: str, instead: str
) -> None:
    with FusionDefinition() as fd, pytest.raises(FuserError) as caught:
        getattr(fd.ops, name)
    text = str(caught.value)
    assert f"fd.ops.{name} is not available in this version of thunder_fuser" in text
    assert f"it is {kind}" in text
    assert instead in text
    assert not hasattr(fd.ops, name)


def test_what_never_was_suggests_what_is() -> None:
    with pytest.raises(AttributeError, match=r"no operation fd\.ops\.relu6; did you mean relu"):
        _ = FusionDefinition().ops.relu6


def views(fd: FusionDefinition) -> dict[str, Callable[[], Any]]:
    """Each view, positionally and with nvFuser's keywords, on an input of its own."""
    x = fd.define_tensor([4, 1, 6], True)
    return {
        "cast": lambda: fd.ops.cast(arg=x, dtype=DataType.Half),
        "set": lambda: fd.ops.set(x),
        "segment_set": lambda: fd.ops.segment_set(x),
        "permute": lambda: fd.ops.permute(x, dims=[2, 0, 1]),
        "stride_order": lambda: fd.ops.stride_order(x, stride_order=[0, 1, 2]),
        "broadcast": lambda: fd.ops.broadcast(x, is_broadcast_dim=[False, True, False, False]),
        "broadcast_in_dim": lambda: fd.ops.broadcast_in_dim(
            x, shape=[4, 5, 7, 6], broadcast_dims=[0, 1, 3]
        ),
        "expand": lambda: fd.ops.expand(x, shape=[-1, 9, 6]),
        "squeeze": lambda: fd.ops.squeeze(x, dims=[1], squeeze_expanded=False),
        "reshape": lambda: fd.ops.reshape(x, new_shape=(2, -1)),
        "slice": lambda: fd.ops.slice(
            x, start_indices=[0, 0, 1], end_indices=[4, 1, 6], strides=[1, 1, 2],
            manual_normalization=False,
        ),
        "pad": lambda: fd.ops.pad(x, [1, 2], fd.define_scalar(1.5)),
        "cat": lambda: fd.ops.cat([x, x], dim=-1, manual_padding=False),
        "full": lambda: fd.ops.full(shape=x.shape(), fill_value=2, dtype=DataType.Int),
        "iota": lambda: fd.ops.iota(5, start=None, step=2, dtype=DataType.Int32),
        "size": lambda: fd.ops.size(x, dim=-1),
        "shape": lambda: fd.ops.shape(x),
        "at": lambda: fd.ops.at(fd.ops.shape(x), 0),
        "view": lambda: fd.ops.view(x, "reshape", [("merge", 0)], stride_order=[0, 1]),
    }  # fmt: skip


SIZES = {
    "cast": (4, 1, 6), "set": (4, 1, 6), "segment_set": (4, 1, 6), "permute": (6, 4, 1),
    "stride_order": (4, 1, 6), "broadcast": (4, 1, 1, 6), "broadcast_in_dim": (4, 5, 7, 6),
    "expand": (4, 9, 6), "squeeze": (4, 6), "reshape": (2, 12), "slice": (4, 1, 3),
    "pad": (4, 1, 9), "cat": (4, 1, 12), "full": (4, 1, 6), "iota": (5,), "view": (4, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_views(name: str) -> None:
    with FusionDefinition() as fd:
        y = views(fd)[name]()
        fd.add_output(y)
    assert y.val.sizes == SIZES[name]
    assert equal(executed(repr(fd)), fd.fusion)


def test_sizes_are_scalars() -> None:
    with FusionDefinition() as fd:
        made = views(fd)
        assert made["size"]().val.value == 6
        assert [s.val.value for s in made["shape"]()] == [4, 1, 6]
        assert made["at"]().val.value == 4


def test_numbers_stand_anywhere() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3], True)
        y = fd.ops.where(fd.ops.gt(x, 0), 2.0, fd.ops.mul(x, fd.define_scalar(3.0)))
        z = fd.ops.add(1, 2)
        n = fd.ops.mul(fd.define_scalar(DataType.Double), 2.0)
        fd.add_output(fd.ops.mul(fd.ops.add(y, z), n))
    assert isinstance(z, Scalar)
    assert z.val.value == 3
    assert isinstance(n, Scalar)
    assert n.is_symbolic()
    assert not z.is_symbolic()
    assert equal(executed(repr(fd)), fd.fusion)


def test_operators() -> None:
    def by_operator(fd: FusionDefinition) -> None:
        x, k = fd.define_tensor([3], True), fd.define_tensor([3], True, INT)
        fd.add_output(-x + 1.0 - x * 2.0 / x**2 + abs(x) - (1.0 - x) / (2.0 / x) + 2.0**x)
        fd.add_output(((k & 3) | (4 ^ k)) << 1 >> k)
        fd.add_output(fd.ops.logical_or(x < 1.0, fd.ops.logical_and(x >= 2.0, x < 3.0)))
        fd.add_output(~k)

    def by_name(fd: FusionDefinition) -> None:
        f = fd.ops
        x, k = fd.define_tensor([3], True), fd.define_tensor([3], True, INT)
        a = f.sub(f.add(f.neg(x), 1.0), f.truediv(f.mul(x, 2.0), f.pow(x, 2)))
        a = f.sub(f.add(a, f.abs(x)), f.truediv(f.sub(1.0, x), f.truediv(2.0, x)))
        fd.add_output(f.add(a, f.pow(2.0, x)))
        b = f.bitwise_or(f.bitwise_and(k, 3), f.bitwise_xor(4, k))
        fd.add_output(f.bitwise_right_shift(f.bitwise_left_shift(b, 1), k))
        fd.add_output(f.logical_or(f.lt(x, 1.0), f.logical_and(f.ge(x, 2.0), f.lt(x, 3.0))))
        fd.add_output(f.bitwise_not(k))

    with FusionDefinition() as one:
        by_operator(one)
    with FusionDefinition() as other:
        by_name(other)
    operations = [sorted(e.op for e in fd.fusion.exprs) for fd in (one, other)]
    assert operations[0] == operations[1]
    assert len(one.fusion.outputs) == 4


def test_arithmetic_on_sizes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        n = fd.define_scalar(DataType.Int32)
        rows, columns = x.shape()
        assert x.ndim == 2
        y = fd.ops.reshape(x, [n, rows * columns // n])
        z = fd.ops.slice(y, [1, 0], [n - 1, 2 * (columns % 4) + 1])
        fd.add_output(fd.ops.reshape(z, [-1]))
        with pytest.raises(FuserValueError, match="a divisor of sizes must be positive, got 0"):
            rows // 0
    text = to_python(fd.fusion)
    assert "new_shape=[S1, (T0.size(0) * T0.size(1)) // S1]" in text
    assert "end_indices=[S1 - 1, 2 * (T0.size(1) % 4) + 1]" in text
    assert equal(executed(text), fd.fusion)


def test_values_describe_themselves() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, -1], True, DataType.Half)
        assert repr(x) == "T0: DataType.Half [4, T0_1]"
        assert repr(x.size(0)) == "S1: DataType.Int = 4"
        assert repr(fd.define_scalar(DataType.Double)) == "S2: DataType.Double"
        assert x in [x]
        with pytest.raises(FuserTypeError, match="has no value while the definition is written"):
            _ = 1 if x < 2.0 else 0
        assert x.is_tensor()
        assert not x.size(0).is_tensor()


def test_module_level_operations_act_on_the_open_definition() -> None:
    with FusionDefinition() as outer:
        x = outer.define_tensor([3], True)
        with FusionDefinition() as inner:
            y = inner.define_tensor([5], True)
            inner.add_output(ops.relu(y))
        outer.add_output(ops.exp(x))
    assert [e.op for e in outer.fusion.exprs] == ["exp"]
    assert [e.op for e in inner.fusion.exprs] == ["relu"]
    with pytest.raises(FuserError, match="no definition is open"):
        ops.exp(x)


# ---- errors

MISTAKES: dict[str, tuple[Callable[[FusionDefinition, Tensor], Any], type[Exception], str]] = {
    "sizes": (lambda fd, x: fd.ops.add(x, fd.define_tensor([5], True)), FuserValueError,
        "sizes [5, 6] of dimension -1 do not broadcast"),
    "where": (lambda fd, x: fd.ops.where(x, x, x), FuserTypeError, "must be Bool"),
    "bits of floats": (lambda fd, x: fd.ops.bitwise_and(x, x), FuserTypeError,
        "does not take Float"),
    "arity": (lambda fd, x: fd.ops.add(x), FuserTypeError, "add takes 2 operands, got 1"),
    "dims": (lambda fd, x: fd.ops.permute(x, [0, 0]), FuserValueError, "not a permutation"),
    "float dims": (lambda fd, x: fd.ops.permute(x, [0.0, 1]), FuserTypeError,
        "dims: expected an integer, got float: 0.0"),
    "no dims": (lambda fd, x: fd.ops.permute(x), FuserTypeError, "permute: missing a required"),
    "no list": (lambda fd, x: fd.ops.squeeze(x, 0), FuserTypeError,
        "dims: expected a list of integers, got int"),
    "elements": (lambda fd, x: fd.ops.reshape(x, [5, 5]), FuserValueError, "24 elements become 25"),
    "rank": (lambda fd, x: fd.ops.expand(x, [4]), FuserValueError, "expected 2 sizes"),
    "slice rank": (lambda fd, x: fd.ops.slice(x, [0], [4]), FuserValueError,
        "expected 2 start indices, end indices and strides, got 1, 1 and 1"),
    "slice stride": (lambda fd, x: fd.ops.slice(x, [0, 0], [4, 6], [1, 0]), FuserValueError,
        "stride 0 of dimension 1 must be a positive constant"),
    "slice order": (lambda fd, x: fd.ops.slice(x, [3, 0], [2, 6]), FuserValueError,
        "dimension 0 ends at 2 before its start 3"),
    "cat": (lambda fd, x: fd.ops.cat([x, fd.define_tensor([4, 5], True)], 0), FuserValueError,
        "dimension 1 has sizes [5, 6]"),
    "cat of one": (lambda fd, x: fd.ops.cat(x), FuserTypeError, "expected a list of tensors"),
    "a torch tensor": (lambda fd, x: fd.ops.add(x, torch.zeros(6)), FuserTypeError,
        "got a torch.Tensor; make it an input with fd.from_pytorch(x)"),
    "a string": (lambda fd, x: fd.ops.add(x, "1"), FuserTypeError,
        "expected a tensor, a scalar or a number"),
    "foreign": (lambda fd, x: fd.ops.add(x, FusionDefinition().define_scalar(1.0)), FuserValueError,
        "belongs to another FusionDefinition"),
    "torch dtype": (lambda fd, x: fd.ops.cast(x, torch.half), FuserTypeError,
        "expected a DataType, got torch.float16; write DataType.Half"),
    "transform": (lambda fd, x: fd.ops.view(x, "reshape", [("fold", 0)]), FuserTypeError,
        "there is no transform 'fold'"),
    "transform numbers": (lambda fd, x: fd.ops.view(x, "reshape", [("split", 0)]), FuserTypeError,
        "transform split takes (axis, outer, inner), got 1 numbers"),
    "scalar output": (lambda fd, x: fd.add_output(fd.define_scalar(1.0)), FuserTypeError,
        "an output must be a tensor"),
    "alias of no input": (lambda fd, x: fd.add_output(x, fd.ops.relu(x)), FuserValueError,
        "is not an input of this fusion"),
    "alias twice": (lambda fd, x: [fd.add_output(fd.ops.exp(x), x) for _ in range(2)],
        FuserValueError, "is updated by another output already"),
    "a view of a number": (lambda fd, x: fd.ops.expand(2.0, [3]), FuserTypeError,
        "arg: expected a tensor, got 2.0"),
    "full of a tensor": (lambda fd, x: fd.ops.full([3], x, FLOAT), FuserTypeError,
        "fill_value: expected a number or a 0-dim tensor"),
    "an unknown keyword": (lambda fd, x: fd.ops.relu(x, inplace=True), FuserTypeError,
        "relu: got an unexpected keyword argument 'inplace'"),
    "alias of another dtype": (
        lambda fd, x: fd.add_output(fd.ops.cast(x, DataType.Half), x), FuserValueError,
        "dtype and rank must agree"),
    "constant": (lambda fd, x: fd.define_scalar(1.5, dtype=DataType.Int), FuserTypeError,
        "the constant 1.5 does not fit DataType.Int"),
    "vector": (lambda fd, x: fd.define_vector(2.0), FuserTypeError,
        "expected an integer, got float"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake: str) -> None:
    make, kind, message = MISTAKES[mistake]
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6], True)
        with pytest.raises(kind, match=re.escape(message)) as caught:
            make(fd, x)
    assert isinstance(caught.value, RuntimeError)
    assert re.search(r"\(in fd\.\S+ at \S*test_operations\.py:\d+\)$", str(caught.value))


PROGRAM = """\
def program(fd):
    x = fd.define_tensor([4], True)
    y = fd.ops.exp(
        x * 2.0)

    fd.add_output(y)
"""


def test_expressions_know_the_users_line() -> None:
    names: dict[str, Any] = {}
    exec(compile(PROGRAM, "model.py", "exec"), names)
    with FusionDefinition() as fd:
        names["program"](fd)
    origins = [e.origin for e in fd.fusion.exprs]
    assert origins == [Origin("mul", "model.py", 4), Origin("exp", "model.py", 3)]


@pytest.mark.parametrize("sizes", [[4, 6], [-1, -1]], ids=["known", "open"])
@pytest.mark.parametrize(
    ("step", "told"),
    [
        (("split", 0, 3, 2), "makes 6 of dimension 0, whose size is"),
        (("split", 0, -2, -2), "makes 4 of dimension 0"),
        (("split", 2, 2, 2), "does not fit 2 dimensions"),
        (("merge", 1), "does not fit 2 dimensions"),
        (("new_broadcast", 3), "does not fit 2 dimensions"),
        (("reorder", [1, 1]), "does not fit 2 dimensions"),
    ],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_a_view_does_not_read_beyond_its_dimensions(
    sizes: list[int], step: tuple[Any, ...], told: str
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=sizes, contiguity=[True, True], dtype=FLOAT)
        with pytest.raises(FuserValueError, match=told):
            fd.ops.view(x, "reshape", [step])
        with pytest.raises(FuserValueError, match="there is no view 'turn'"):
            fd.ops.view(x, "turn", [])
        fd.add_output(fd.ops.view(x, "reshape", [("new_broadcast", 2), ("merge", 0)]))
    given = torch.randn(4, 6)
    assert torch.equal(fd.execute([given])[0], given.reshape(24, 1))


@pytest.mark.parametrize("sizes", [[6], [-1]], ids=["known", "open"])
def test_a_view_adds_no_elements_without_a_value(sizes: list[int]) -> None:
    given = torch.arange(6.0)
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=sizes, contiguity=[True], dtype=FLOAT)
        for steps in (
            [("resize", 0, 2, 3)],
            [("resize", 0, -2, 3)],
            [("resize", 0, 1, 0)],
            [("resize", 0, 0, 2), ("split", 0, 2, 4)],
            [("resize", 0, 0, 2), ("split", 0, 2, 4), ("resize", 1, 0, -1)],
        ):
            if sizes[0] > 0 or len(steps) == 1:
                with pytest.raises(FuserValueError, match="adds elements to dimension 0"):
                    fd.ops.view(x, "slice", steps)
        fd.add_output(fd.ops.view(x, "slice", [("resize", 0, -2, -1)]))
        fd.add_output(fd.ops.view(x, "pad", [("resize", 0, 1, 2)]))
        fd.add_output(fd.ops.view(x, "pad", [("resize", 0, -1, 2)], value=fd.define_scalar(7.0)))
    cut, padded, filled = fd.execute([given])
    assert torch.equal(cut, given[2:5])
    assert torch.equal(padded, torch.nn.functional.pad(given, (1, 2)))
    assert torch.equal(filled, torch.nn.functional.pad(given, (-1, 2), value=7.0))


def test_a_slice_that_rounds_up_to_its_stride_is_a_view() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[6], contiguity=[True], dtype=FLOAT)
        rounded = [("resize", 0, -1, 1), ("split", 0, 2, 3), ("resize", 1, 0, -2), ("squeeze", 1)]
        fd.add_output(fd.ops.view(x, "slice", rounded))
    given = torch.arange(6.0)
    assert torch.equal(fd.execute([given])[0], given[1::3])
