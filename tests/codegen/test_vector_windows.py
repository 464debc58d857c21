"""Loads whose lanes leave out elements of their windows, between guard pages: slices of every step
and offset, pairs side by side, flips.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.support.batch import Batch, Guarded, allocations
from tests.support.building import op
from tests.support.shares import each_value
from thunder_fuser.compile import compile_plan, generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.templates.pointwise import schedule as pointwise_schedule

CPU = torch.device("cpu")
DTYPES = (DataType.BFloat16, DataType.Float, DataType.Int8, DataType.Double)


def check(
    b: FusionBuilder,
    inputs: list[torch.Tensor],
    exact: list[torch.Tensor],
    info: DeviceInfo | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = Batch(CPU, info)
    plan = CompiledFusion(b.build()).plan(inputs)
    guarded = Guarded(batch, plan, "random", 1)
    guarded.memory += inputs
    with allocations(monkeypatch, guarded.memory.append):
        run = compile_plan(plan, CPU, guarded)
    for found, wanted in zip(run(inputs), exact, strict=True):
        assert torch.equal(found, wanted)


@each_value(dtype=DTYPES, info=[None, H200])
def test_slices_of_every_step_and_offset(
    dtype: DataType, info: DeviceInfo | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = FusionBuilder()
    inputs, exact = [], []
    slices = itertools.product((257, 512), (0, 1, 3), (1, 2, 3, 4, 5))
    # Every other one: which, alternates between the dtypes, and between the schedules of each.
    first = (DTYPES.index(dtype) + (info is None)) % 2
    for size, offset, step in itertools.islice(slices, first, None, 2):
        x = torch.arange(3 * size).remainder(101).reshape(3, size).to(dtype.torch)
        found = b.slice(b.tensor([3, size], dtype), [0, offset], [3, size], [1, step])
        b.output(op(b, "add", found, found))
        inputs.append(x)
        exact.append(x[:, offset::step] + x[:, offset::step])
    check(b, inputs, exact, info, monkeypatch)


@each_value(dtype=DTYPES, info=[None, H200])
def test_pairs_and_flips(
    dtype: DataType, info: DeviceInfo | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = FusionBuilder()
    inputs, exact = [], []
    for sizes in ((7, 64), (5, 33), (64, 2), (33, 3)):
        x = torch.arange(sizes[0] * sizes[1]).remainder(101).reshape(sizes).to(dtype.torch)
        tensor = b.tensor(sizes, dtype)
        first, last = (b.slice(tensor, [0, k], [sizes[0], k + 1]) for k in (0, sizes[1] - 1))
        b.output(op(b, "sub", last, first))
        down = b.iota(sizes[1], sizes[1] - 1, -1, DataType.Int)
        b.output(op(b, "add", tensor, b.gather("index_select", tensor, 1, down)))
        inputs.append(x)
        exact += [x[:, -1:] - x[:, :1], x + x.flip(1)]
    check(b, inputs, exact, info, monkeypatch)


def rolled(b: FusionBuilder, columns: int, shift: int, dtype: DataType) -> None:
    """A rotation of rows: the lanes of one vector come from both ends, those of others are
    neighbours.
    """
    x = b.tensor([5, columns], dtype)
    last = b.slice(x, [0, columns - shift], [5, columns])
    b.output(op(b, "add", b.cat([last, b.slice(x, [0, 0], [5, columns - shift])], 1), x))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_rows_that_are_rotated(dtype: DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    b = FusionBuilder()
    inputs, exact = [], []
    for columns, shift in ((512, 3), (513, 1), (520, 17), (96, 50)):
        rolled(b, columns, shift, dtype)
        x = torch.arange(5 * columns).remainder(101).reshape(5, columns).to(dtype.torch)
        inputs.append(x)
        exact.append(x.roll(shift, 1) + x)
    check(b, inputs, exact, None, monkeypatch)


@pytest.mark.parametrize("info", [None, H200], ids=["own", "H200"])
def test_loads_under_conditions_that_contradict_each_other(
    info: DeviceInfo | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends of sums of shifted pads, some of which are zero there, that are added elsewhere: the
    gradient of a sum of neighbours, behind a border that reflects.
    """
    b = FusionBuilder()
    x = b.tensor([8, 6], DataType.Float)
    padded = [b.pad(x, widths, 0.0) for widths in ([2, 0], [1, 1], [0, 2])]
    total = op(b, "add", op(b, "add", padded[0], padded[1]), padded[2])
    inner = b.slice(total, [0, 1], [8, 7])
    last = b.pad(b.slice(total, [0, 7], [8, 8]), [4, 1], 0.0)
    first = b.pad(b.slice(total, [0, 0], [8, 1]), [1, 4], 0.0)
    b.output(op(b, "add", op(b, "add", inner, last), first))
    given = torch.arange(48.0).reshape(8, 6)
    ends = torch.nn.functional.pad(given, (1, 1))
    exact = ends[:, :-2] + given + ends[:, 2:]
    exact[:, 4] += given[:, 5]
    exact[:, 1] += given[:, 0]
    check(b, [given], [exact], info, monkeypatch)


def test_lanes_that_all_take_one_load_have_no_tests_on_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where rows are not split at their seams, as if there were many."""
    monkeypatch.setattr(pointwise_schedule, "row_pieces", lambda *_: ())
    b = FusionBuilder()
    rolled(b, 512, 3, DataType.Float)
    plan = CompiledFusion(b.build()).plan()
    for device, count in ((HOST.device_info(CPU), 1), (H200, 0)):
        (found,) = generate_kernels(plan, device).values()
        loads = [line for line in found.kernel.source.splitlines() if "- 3))[v];" in line]
        assert sum(" if (" not in line for line in loads) == count, device.name
