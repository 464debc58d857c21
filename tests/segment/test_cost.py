"""What kernels cost: sectors and launches of a device whose figures are data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.building import op
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.segment.anchors.graph import AnchorGraph
from thunder_fuser.segment.planner import partition
from thunder_fuser.segment.prices import PriceUnits

Float = DataType.Float
ROWS, COLUMNS = 1 << 14, 64
COLUMN = 4 * ROWS
WORDWISE = replace(H200, sector_bytes=4)
"""Memory that moves single elements."""


@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.arch)
def test_prices_are_those_of_the_device(device: DeviceInfo) -> None:
    prices = PriceUnits.of(device)
    seconds = prices.launch / prices.byte / device.copy_bandwidth
    assert seconds == pytest.approx(device.launch_seconds, rel=0.1)
    assert prices(3, 100) == 3 * prices.launch + 100 * prices.byte
    rate = prices.byte * device.copy_bandwidth
    assert rate == pytest.approx(2 * device.fp32_rate, rel=0.1)


def column_twice() -> Fusion:
    """One column of a matrix is wanted by a kernel, and by another one behind a cut."""
    b = FusionBuilder()
    x = b.tensor([ROWS, COLUMNS], Float)
    e = op(b, "exp", b.slice(x, [0, 0], [ROWS, 1]))
    total = b.segment_set(b.reduce("sum", e, [0, 1], keepdim=True))
    b.output(op(b, "div", e, total))
    return b.build()


def test_a_column_is_stored_rather_than_its_sectors_read_again() -> None:
    """One element of every row costs a sector each: a copy without gaps is smaller, though it is
    written first.
    """
    found = partition(column_twice())
    assert sorted(b.bytes for b in found.boundaries) == [4, COLUMN]
    apart = partition(column_twice(), device=WORDWISE)
    assert [b.bytes for b in apart.boundaries] == [4]
    assert found.kernels == apart.kernels == 2


def test_a_segment_tells_what_its_sectors_hold_besides() -> None:
    first, second = partition(column_twice()).segments
    assert (first.bytes_read, first.sector_bytes) == (COLUMN, 32 * ROWS)
    assert f"{COLUMN:,} B read ({32 * ROWS:,} B of sectors)" in str(first)
    # The copy, and the sum.
    assert (second.bytes_read, second.sector_bytes) == (COLUMN + 4, COLUMN + 32)
    assert "sectors" not in str(second)


def test_inputs_whose_elements_lie_apart_are_dearer() -> None:
    """The memory of an input counts, as it is bound."""
    b = FusionBuilder()
    x = b.tensor([1024], Float, contiguity=[False])
    b.output(op(b, "exp", x))
    fusion = b.build()
    for stride, moved in ((1, 4096), (2, 8192), (8, 32768), (100, 32768)):
        assert AnchorGraph(fusion, [Layout((stride,))]).bytes_of(x) == moved
    (segment,) = partition(fusion, [Layout((8,))]).segments
    assert (segment.bytes_read, segment.sector_bytes) == (4096, 32768)


@pytest.mark.parametrize(
    ("strides", "read"),
    [
        ((1024 * 1024, 1024, 1), 56 * 1024 * 1024),
        ((1024, 0, 1), 56 * 1024),
        ((0, 1, 0), 1024),
        ((0, 0, 0), 1),
    ],
)
def test_an_expanded_input_costs_its_elements_once(strides: tuple[int, ...], read: int) -> None:
    """Its dimensions do not say that it is: Thunder's tensors have no strides before a call."""
    shape = (56, 1024, 1024)
    b = FusionBuilder()
    x = b.tensor(shape, DataType.BFloat16)
    y = b.tensor(shape, DataType.BFloat16, contiguity=[False] * 3)
    b.output(b.cast(b.pointwise("add", x, y), DataType.BFloat16))
    plan = partition(b.build(), [Layout((1024 * 1024, 1024, 1)), Layout(strides)])
    points = 56 * 1024 * 1024
    assert plan.kernels == 1
    assert plan.bytes == plan.bytes_ideal == 2 * (2 * points + read)


def test_some_of_an_expanded_input_costs_what_is_read_of_it() -> None:
    b = FusionBuilder()
    x = b.tensor((64, 100, 1024), DataType.Float, contiguity=[False] * 3)
    b.output(op(b, "neg", b.slice(x, [8, 5, 0], [64, 7, 512])))
    plan = partition(b.build(), [Layout((0, 1024, 1))])
    (segment,) = plan.segments
    assert segment.bytes_read == 2 * 512 * 4
