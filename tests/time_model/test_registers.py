"""Registers that are estimated, and what launch bounds ask for by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.plans import DEFINITIONS
from tests.zoo.workloads import BY_NAME
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200, T4
from thunder_fuser.segment.plan import SegmentedFusion


def asked(plan: SegmentedFusion, device: DeviceInfo) -> list[int]:
    return [found.kernel.min_blocks_hint for found in generate_kernels(plan, device).values()]


@pytest.mark.parametrize(
    ("device", "blocks"),
    [
        pytest.param(H200, 6, id="five blocks of 44 registers load 48 KB"),
        pytest.param(replace(H200, bytes_in_flight_per_sm=16 << 10), 0, id="enough under way"),
        pytest.param(replace(H200, registers_per_sm=128 << 10), 0, id="registers for more"),
        pytest.param(replace(H200, sm_count=16_384), 0, id="a block each"),
        pytest.param(T4, 0, id="1,024 threads a multiprocessor"),
    ],
)
def test_occupancy_is_asked_for_where_loads_are_short_of_it(
    device: DeviceInfo, blocks: int
) -> None:
    """RoPE of Llama-3, backward: each vector of a gradient is loaded by two threads."""
    (plan,) = (d.plan() for d in DEFINITIONS if d.name == "RoPE of Llama-3, backward")
    assert asked(plan, device) == [blocks]


@pytest.mark.parametrize("name", ["adamw", "swiglu_backward"])
def test_threads_that_load_much_do_not_ask(name: str) -> None:
    workload = BY_NAME[name]
    assert asked(CompiledFusion(workload.fusion(workload.full)).plan(), H200) == [0]
