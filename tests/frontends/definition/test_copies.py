"""Definitions that are copied or pickled, before, during and after their calls."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.errors import FuserError

Copied = Callable[[Any], Any]
WAYS: dict[str, Copied] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}
copied = pytest.mark.parametrize("copied", WAYS.values(), ids=WAYS)


class Scaled(FusionDefinition):
    """Keeps a handle, which refers to the definition that it is an attribute of."""

    def definition(self) -> None:
        self.x = self.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        factor = self.define_scalar(dtype=DataType.Double)
        self.add_output(self.ops.mul(self.ops.sum(self.x, [1], keepdim=True), factor))


@copied
@pytest.mark.parametrize("is_called", [False, True])
def test_a_copy_runs(copied: Copied, is_called: bool) -> None:
    fd, x = Scaled(), torch.arange(12.0).reshape(3, 4)
    if is_called:
        fd.execute([x, 2.0], save_repro_inputs=True, profile=True)
    kept = copied(fd)
    if is_called:
        assert kept.plan() == fd.plan()
        assert kept.profile() == fd.profile()
        assert kept.fusion == fd.fusion
    assert torch.equal(kept.execute([x, 3.0])[0], 3 * x.sum(1, keepdim=True))


@copied
def test_operations_of_a_copy_are_its_own(copied: Copied) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        y = fd.ops.relu(x)
        kept, kept_y = copied((fd, y)) if copied is not copy.copy else (copy.copy(fd), None)
        fd.add_output(y)
    assert not kept.fusion.outputs
    if kept_y is not None:
        with kept:
            kept.add_output(kept.ops.neg(kept_y))
        (found,) = kept.execute([torch.tensor([1.0, -2.0])])
        assert found.tolist() == [-1.0, 0.0]
    (found,) = fd.execute([torch.tensor([1.0, -2.0])])
    assert found.tolist() == [1.0, 0.0]


@copied
def test_a_finished_copy_takes_no_operations(copied: Copied) -> None:
    fd = Scaled()
    fd.execute([torch.ones(2, 2), 1.0])
    kept = copied(fd)
    with pytest.raises(FuserError, match="finished"):
        kept.ops.relu(kept.fusion.inputs()[0])
    graph = copied(fd.fusion)
    assert graph == fd.fusion
    assert graph.print_math() == fd.fusion.print_math()


def test_a_copy_learns_nothing_of_its_originals_sizes() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1], contiguity=True) for _ in range(2))
        kept = fd.clone()
        fd.add_output(fd.ops.add(x, y))
    with kept:
        for value, size in zip(kept.fusion.inputs(), (6, 5), strict=True):
            kept.add_output(kept.ops.reshape(value, [size]))
    found = kept.execute([torch.ones(6), torch.ones(5)])
    assert [len(t) for t in found] == [6, 5]


@copied
def test_definitions_and_plans_with_open_sizes(copied: Copied) -> None:
    """Sizes that are computed, too: their forms are those of another context."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        total = fd.ops.mul(fd.ops.size(x, 0), fd.ops.size(x, 1))
        fd.add_output(fd.ops.sum(fd.ops.reshape(x, [total]), [0]))
        fd.add_output(fd.ops.sum(x, [1]))
    kept, plan = copied(fd), fd.plan()
    assert kept.plan() == copied(plan) == plan
    assert str(kept.plan()) == str(plan)
    assert kept.plan() != kept.plan(sizes={"i0": 64})
    first, _ = kept.execute([torch.ones(3, 4)])
    assert first.item() == 12
    assert repr(kept) == repr(fd)
