from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_fuser
from tests.passes.patterns import ops_of
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.passes.empty_calls import empty_calls


def product(fd: FusionDefinition, x: Any, y: Any) -> Any:
    return fd.ops.matmul(x, y)


def order(fd: FusionDefinition, x: Any, y: Any) -> Any:
    return fd.ops.neg(fd.ops.sort(fd.ops.exp(y), -1)[0])


def none_of_several(fd: FusionDefinition, x: Any, y: Any) -> Any:
    return fd.ops.topk(fd.ops.tan(x), 0, -1, True, True)[1]


@pytest.mark.parametrize("write", [product, order, none_of_several])
@pytest.mark.parametrize("columns", [0, 3])
def test_calls_without_elements_run(write: Callable[..., Any], columns: int) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], True, DataType.Float) for _ in range(2))
        fd.add_output(write(fd, x, y))
    with thunder_fuser.options(strict=True):
        (out,) = fd.validate([torch.randn(4, 2), torch.randn(2, columns)])
    assert 0 in out.shape or columns


def test_only_what_has_no_elements_goes() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([2, n], True, DataType.Float) for n in (3, 0))
        values, _ = fd.ops.sort(x)
        fd.add_output(fd.ops.matmul(fd.ops.permute(values, [1, 0]), y))
        fd.add_output(values)
    found = empty_calls(fd.fusion.plain)
    assert ops_of(found).count("sort") == 2
    assert "matmul" not in ops_of(found)
