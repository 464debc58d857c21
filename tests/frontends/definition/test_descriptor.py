"""Tensor descriptors: from strides, and from what users write."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition, compute_tensor_descriptor
from thunder_fuser.ir.domain import IterKind, dense_strides
from thunder_fuser.ir.integer.symint import Form


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "stride_order"),
    [
        ([4, 8], [8, 1], [True, True], [1, 0]),
        ([4, 8], [1, 4], [True, True], [0, 1]),
        ([4, 8], [16, 2], [True, False], [1, 0]),
        ([4, 8], [9, 1], [False, True], [1, 0]),
        ([2, 3, 4, 5], [60, 1, 15, 3], [True, True, True, True], [3, 0, 2, 1]),
        # Expanded dimensions keep their place, whatever surrounds them.
        ([6, 7, 8], [0, 0, 1], [None, None, True], [2, 1, 0]),
        ([6, 7, 8], [1, 0, 6], [True, None, True], [0, 1, 2]),
        # Dimensions of size 1 have a stride, and are sorted by it.
        ([2, 3, 1, 4], [12, 4, 48, 1], [None, True, True, True], [2, 1, 3, 0]),
        ([1, 1], [1, 1], [None, None], [1, 0]),
        ([0, 3], [3, 1], [True, True], [1, 0]),
        ([], [], [], []),
    ],
)
def test_from_strides(
    sizes: list[int], strides: list[int], contiguity: list[bool | None], stride_order: list[int]
) -> None:
    assert compute_tensor_descriptor(sizes, strides) == (contiguity, stride_order)


def test_every_order_of_a_dense_tensor_is_found() -> None:
    sizes = (2, 3, 4, 5)
    for order in itertools.permutations(range(4)):
        contiguity, stride_order = compute_tensor_descriptor(sizes, dense_strides(sizes, order))
        assert contiguity == [True] * 4
        assert [3 - stride_order[k] for k in order] == [0, 1, 2, 3]


def test_strides_must_make_sense() -> None:
    with pytest.raises(FuserValueError, match="2 sizes but 1 strides"):
        compute_tensor_descriptor([2, 3], [1])
    with pytest.raises(FuserValueError, match="must not be negative"):
        compute_tensor_descriptor([2], [-1])
    with pytest.raises(FuserTypeError, match="expected an integer, got float"):
        compute_tensor_descriptor([2.0], [1])  # type: ignore[list-item]


def domain_of(**how: Any) -> Any:
    with FusionDefinition() as fd:
        return fd.define_tensor(**how).val.domain


def test_shape_and_contiguity() -> None:
    domain = domain_of(shape=[-1, 1, 7, 0], contiguity=[False, None, True, True])
    unknown, one, seven, none = domain.logical
    assert isinstance(unknown.extent, Form)
    assert (one.extent, one.kind, one.expanded) == (1, IterKind.BROADCAST, None)
    assert (seven.extent, none.extent) == (7, 0)
    assert domain.contiguity == (False, None, True, True)
    assert domain.allocation == (0, 1, 2, 3)


def test_stride_order_and_contiguity_follow_memory() -> None:
    # Channels last: contiguity lists N, H, W, C.
    domain = domain_of(
        shape=[2, 3, 4, 5], contiguity=[False, True, True, True], stride_order=[3, 0, 2, 1]
    )
    assert domain.allocation == (0, 2, 3, 1)
    assert domain.contiguity == (False, True, True, True)


def test_one_contiguity_for_all() -> None:
    assert domain_of(shape=[2, 1, 3], contiguity=True).contiguity == (True, None, True)
    assert domain_of(shape=[2, 1, 3]).contiguity == (False, None, False)


def test_expanded_dimensions() -> None:
    domain = domain_of(shape=[-1, 6, -1], contiguity=[None, None, True])
    first, second, third = domain.logical
    assert first.is_broadcast
    assert isinstance(first.expanded, Form)
    assert second.expanded == 6
    assert not third.is_broadcast
    # In memory order: the None belongs to dimension 0.
    turned = domain_of(shape=[4, 5], contiguity=[True, None], stride_order=[0, 1])
    assert [d.expanded for d in turned.logical] == [4, None]


def test_sizes_and_strides() -> None:
    by_name = domain_of(sizes=[4, 1, 8], strides=[8, 8, 1])
    assert [isinstance(size, Form) for size in by_name.shape] == [True, False, True]
    assert by_name.contiguity == (True, None, True)
    assert domain_of(sizes=[4, 8], strides=[1, 4], static_sizes=True).shape == (4, 8)
    with FusionDefinition() as fd:
        by_position = fd.define_tensor([4, 8], [1, 4], DataType.Half)
    assert by_position.val.domain.allocation == (1, 0)
    assert by_position.dtype() is DataType.Half


@pytest.mark.parametrize("named", [True, False])
def test_stride_order_of_an_output(named: bool) -> None:
    with FusionDefinition() as fd:
        y = fd.ops.neg(fd.define_tensor([2, 3], True))
        fd.add_output(y, stride_order=[0, 1]) if named else fd.add_output(y, [0, 1])
    (out,) = fd.execute([torch.ones(2, 3)])
    assert out.stride() == (1, 2)
    assert torch.equal(out, -torch.ones(2, 3))


def test_from_pytorch() -> None:
    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.zeros(4, 1, 8, dtype=torch.bfloat16).permute(2, 0, 1))
        static = fd.from_pytorch(torch.zeros(4, 8)[:, ::2], static_sizes=True)
        scalar = fd.from_pytorch(torch.zeros(()))
        expanded = fd.from_pytorch(torch.zeros(8).expand(4, 8))
        parameter = fd.from_pytorch(torch.nn.Parameter(torch.zeros(3)))
    assert x.dtype() is DataType.BFloat16
    assert x.val.domain.allocation == (1, 2, 0)
    assert x.val.domain.contiguity == (True, None, True)
    assert static.val.domain.shape == (4, 4)
    assert static.val.domain.contiguity == (True, False)
    assert scalar.val.is_cpu
    assert [d.is_broadcast for d in expanded.val.domain.logical] == [True, False]
    assert parameter.ndim == 1


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no shape": ({}, FuserTypeError, "expected a shape, or sizes and strides"),
    "size": ({"shape": [-2]}, FuserValueError, "size -2 must be -1 (any), 0, 1 (broadcast)"),
    "float size": ({"shape": [2.5]}, FuserTypeError, "got float: 2.5"),
    "wide size": ({"shape": [2**63]}, FuserTypeError, "does not fit into 64 bits"),
    "no list": ({"shape": 3.0}, FuserTypeError, "shape: expected a list of sizes, got float"),
    "contiguity": ({"shape": [2], "contiguity": [-1]}, FuserTypeError,
        "contiguity must be a bool or a list of True, False and None, got [-1]"),
    "flags": ({"shape": [2, 3], "contiguity": [True]}, FuserValueError,
        "expected 2 flags, one for each dimension, got [True]; one bool holds for all"),
    "stride order": ({"shape": [2, 3], "stride_order": [0, 0]}, FuserValueError,
        "stride_order [0, 0] is not a permutation of 2 positions"),
    "torch dtype": ({"shape": [2], "dtype": torch.float16}, FuserTypeError,
        "expected a DataType, got torch.float16; write DataType.Half"),
    "null dtype": ({"shape": [2], "dtype": DataType.Null}, FuserValueError,
        "DataType.Null is not a storage type"),
    "cpu tensor": ({"shape": [2], "is_cpu": True}, FuserValueError,
        "CPU non-scalar tensor is not supported!"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake: str) -> None:
    how, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=re.escape(message)) as caught:
        domain_of(**how)
    assert "(in fd.define_tensor at " in str(caught.value)
    assert "test_descriptor.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "expected a torch.Tensor, got 3"),
        (torch.zeros(2, 2).to_sparse(), "layout torch.sparse_coo has no strides"),
        (
            torch.zeros(2, dtype=torch.float8_e4m3fnuz),
            "dtype torch.float8_e4m3fnuz is not supported",
        ),
    ],
)
def test_from_pytorch_takes_strided_tensors_of_known_dtypes(value: Any, message: str) -> None:
    with FusionDefinition() as fd, pytest.raises(FuserTypeError, match=re.escape(message)):
        fd.from_pytorch(value)
