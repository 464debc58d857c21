"""Operations as nvFuser's users write them: 0 for False, complex statistics, triangles, select."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.frontends.definition.together import Together
from thunder_fuser.errors import FuserIndexError, FuserTypeError, FuserValueError
from thunder_fuser.frontends.definition import DataType, FusionDefinition, Tensor


def test_zero_and_one_are_flags(device: torch.device) -> None:
    """As printed definitions of nvFuser have them."""
    x = torch.randn(4, 6)
    with FusionDefinition() as fd:
        T0 = fd.define_tensor(
            shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=0
        )
        T1 = fd.ops.slice(
            T0, start_indices=[0, 0], end_indices=[4, 3], strides=[1, 1], manual_normalization=0
        )
        T2 = fd.ops.slice(
            T0, start_indices=[0, 3], end_indices=[4, 6], strides=[1, 1], manual_normalization=1
        )
        T3 = fd.ops.cat([T2, T1], dim=-1, manual_padding=0)
        fd.add_output(fd.ops.sum(T3, dims=[0], keepdim=0, dtype=DataType.Null))
        fd.add_output(fd.ops.max(T3, dims=[1], keep_dim=1))
        fd.add_output(fd.ops.squeeze(fd.ops.broadcast(T3, [0, 1, 0]), [1], squeeze_expanded=0))
    together = Together(device)
    swapped = torch.cat([x[:, 3:], x[:, :3]], -1)
    together.add(fd, [x], [swapped.sum(0), swapped.amax(1, keepdim=True), swapped])
    together.check()
    for wrong in (2, -1, "no", None, 0.0):
        with (
            FusionDefinition() as fd,
            pytest.raises(FuserTypeError, match="expected True or False"),
        ):
            fd.ops.sum(fd.define_tensor([3], True), [0], wrong)
    with FusionDefinition() as fd:
        assert fd.define_tensor([4, 5], contiguity=1).val.domain.contiguity == (True, True)


def test_several_results_are_tuples() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 5], True)
        assert isinstance(fd.ops.var_mean(x, [0]), tuple)
        assert isinstance(fd.ops.welford(x, [0]), tuple)
        assert isinstance(x.shape(), list)
        assert all(isinstance(t, Tensor) for t in fd.ops.welford(x, [1]))


def test_variance_of_complex_numbers(device: torch.device) -> None:
    together = Together(device)
    for dtype in (torch.complex64, torch.complex128):
        z = torch.randn(6, 33, dtype=dtype) + 2
        with FusionDefinition() as fd:
            x = fd.from_pytorch(z)
            for value in (
                *fd.ops.var_mean(x, [1], correction=1, keepdim=True),
                *fd.ops.var_mean(x, [0, 1], correction=0),
                fd.ops.var(x, [0]),
                *fd.ops.welford(x, [1]),
            ):
                fd.add_output(value)
        mean = z.mean(1, keepdim=True)
        expected = [
            *torch.var_mean(z, 1, correction=1, keepdim=True),
            *torch.var_mean(z, (0, 1), correction=0),
            z.var(0),
            *(mean[:, 0], (z - mean).abs().square().sum(1), torch.full((6,), 33)),
        ]
        together.add(fd, [z], expected)
    together.check()
    with FusionDefinition() as fd, pytest.raises(FuserTypeError, match="floats or complex numbers"):
        fd.ops.welford(fd.define_tensor([4], True, DataType.Int), [0])


DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def test_triangles(device: torch.device) -> None:
    together = Together(device)
    for k, dtype in enumerate(DTYPES):
        shape = [(5, 7), (7, 5), (2, 3, 4, 4), (1, 6), (3, 1)][k]
        x = torch.testing.make_tensor(shape, dtype=dtype, device="cpu")
        with FusionDefinition() as fd:
            t = fd.from_pytorch(x)
            d = fd.define_scalar(DataType.Int)
            values = [fd.ops.triu(t), fd.ops.triu(t, diagonal=1), fd.ops.tril(t, -1)]
            for value in (*values, fd.ops.tril(t, d)):
                assert value.dtype() is t.dtype()
                fd.add_output(value)
        expected = [x.triu(), x.triu(1), x.tril(-1), x.tril(2)]
        together.add(fd, [x, 2], expected, 0.0)
    together.check()
    with FusionDefinition() as fd, pytest.raises(FuserValueError, match="at least 2 dimensions"):
        fd.ops.triu(fd.define_tensor([4], True))


def test_an_infinity_outside_of_a_triangle_is_gone() -> None:
    x = torch.full((3, 3), torch.inf)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.triu(fd.from_pytorch(x)))
    assert torch.equal(fd.execute([x])[0], x.triu())


def test_select(device: torch.device) -> None:
    x = torch.randn(4, 5, 6)
    together = Together(device)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 5, 6], True)
        k = fd.define_scalar(DataType.Int)
        chosen = [fd.ops.select(t, 2, 0), fd.ops.select(t, -1, 1), fd.ops.select(t, k, -1)]
        chosen.append(fd.ops.select(t, fd.define_scalar(3, DataType.Int), dim=1))
        for value in chosen:
            fd.add_output(fd.ops.exp(value))
    expected = [x[2], x[:, -1], x[..., 4], x[:, 3]]
    together.add(fd, [x, 4], [t.exp() for t in expected])
    with FusionDefinition() as fd:  # with sizes that a call brings
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.exp(fd.ops.select(t, -2, 2)))
        fd.add_output(fd.ops.exp(fd.ops.select(t, 1, 0)))
    together.add(fd, [x], [x[..., -2].exp(), x[1].exp()])
    together.check()
    with pytest.raises(FuserIndexError, match="out of bounds"):
        fd.execute([torch.zeros(1, 5, 6)])


def test_a_selected_constant_is_a_view() -> None:
    x = torch.randn(4, 5)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.select(fd.define_tensor([4, 5], True), 3, 0))
    (row,) = fd.execute([x])
    assert row.data_ptr() == x[3].data_ptr()
    with FusionDefinition() as fd, pytest.raises(FuserValueError, match="index 4 is out of bounds"):
        fd.ops.select(fd.define_tensor([4, 5], True), 4, 0)


def test_an_index_that_is_an_input_shares_its_kernel() -> None:
    x = torch.randn(4, 5)
    with FusionDefinition() as fd:
        t, k = fd.from_pytorch(x), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.exp(fd.ops.select(t, k, 0)))
    for k in (0, 3):
        torch.testing.assert_close(fd.execute([x, k])[0], x[k].exp())
    assert len(fd.compiled.executables) == 1


def embedding(**options: Any) -> FusionDefinition:
    with FusionDefinition() as fd:
        index = fd.define_tensor([2, 3], True, DataType.Int)
        weight = fd.define_tensor([7, 5], True)
        fd.add_output(fd.ops.embedding_fwd(index, weight, None, **options))
    return fd


def test_embedding_with_a_largest_norm(device: torch.device) -> None:
    index, weight = torch.randint(7, (2, 3)), torch.randn(7, 5)
    together = Together(device)
    for max_norm, norm_type in ((1.0, None), (1e-5, 1.0), (1.5, 2.0), (0.7, float("inf")),
                                (2.0, 3.0), (100.0, 2.0), (3.0, 0.0)):  # fmt: skip
        fd = embedding(max_norm=max_norm, norm_type=norm_type)
        order = 2.0 if norm_type is None else norm_type
        expected = F.embedding(index, weight.clone(), max_norm=max_norm, norm_type=order)
        together.add(fd, [index, weight], [expected])
    together.check()
    with pytest.raises(FuserValueError, match="norm_type: expected a constant number"):
        embedding(max_norm=1.0, norm_type=-1)


def test_embedding_as_scripts_call_it() -> None:
    """All arguments, by position or by name, constants of the definition among them."""
    index, weight = torch.randint(7, (2, 3)), torch.randn(7, 5)
    with FusionDefinition() as fd:
        i, w = fd.from_pytorch(index), fd.from_pytorch(weight)
        norm, false = fd.define_scalar(1.0), fd.define_scalar(False)
        fd.add_output(
            fd.ops.embedding_fwd(i, w, fd.define_scalar(0), norm, None, false, sparse=false)
        )
    expected = F.embedding(index, weight.clone(), max_norm=1.0)
    torch.testing.assert_close(fd.execute([index, weight])[0], expected)
