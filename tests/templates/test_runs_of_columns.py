"""Columns in runs, such as the pixels of an image's channel: on a host, no vector lies in two."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import torch

from tests.support.batch import Batch, check_between_guards, fusions_of
from tests.support.generator import random_case
from tests.support.oracle import assert_close_to_reference
from tests.support.schedules import row_schedules
from tests.support.shares import each_pair
from thunder_fuser.compile import generate_kernels
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.lower.vectors.lanes import RunLanes
from thunder_fuser.runtime.host.target import HOST

CPU = torch.device("cpu")
PIXELS = [9, 49, 169, 196, 30 * 31]
"""Those of small images, and so many that a run is longer than what one accumulator takes."""


Program = Callable[[int, int, int, DataType], FusionDefinition]


def batch_norm(images: int, channels: int, pixels: int, dtype: DataType) -> FusionDefinition:
    """Statistics of each channel over all images, and its largest pixel."""
    with FusionDefinition() as fd:
        given = fd.define_tensor([images, channels, pixels], True, dtype)
        x = fd.ops.cast(given, DataType.Float)
        variance, mean = fd.ops.var_mean(x, [0, 2], 0, True)
        normed = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-3)))
        fd.add_output(fd.ops.cast(normed, dtype))
        fd.add_output(fd.ops.max(given, [0, 2]))
    return fd


def group_norm(images: int, channels: int, pixels: int, dtype: DataType) -> FusionDefinition:
    """Statistics of two groups of channels, each of which has a weight of its own."""
    with FusionDefinition() as fd:
        given = fd.define_tensor([images, channels, pixels], True, dtype)
        weight = fd.define_tensor([channels], True, DataType.Float)
        groups = [images, 2, channels // 2, pixels]
        x = fd.ops.reshape(fd.ops.cast(given, DataType.Float), groups)
        variance, mean = fd.ops.var_mean(x, [2, 3], 0, True)
        normed = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-3)))
        apart = fd.ops.reshape(normed, [images, channels, pixels])
        each = fd.ops.broadcast_in_dim(weight, [images, channels, pixels], [1])
        fd.add_output(fd.ops.cast(fd.ops.mul(apart, each), dtype))
    return fd


def positions(images: int, channels: int, pixels: int, dtype: DataType) -> FusionDefinition:
    """Position of the largest pixel of a channel, and a sum of exponentials, whose accumulator
    takes all lanes of a vector.
    """
    with FusionDefinition() as fd:
        given = fd.define_tensor([images, channels, pixels], True, dtype)
        turned = fd.ops.permute(given, [1, 0, 2])
        flat = fd.ops.reshape(turned, [channels, images * pixels])
        fd.add_output(fd.ops.argmax(flat, [1]))
        x = fd.ops.cast(flat, DataType.Float)
        largest = fd.ops.max(x, [1], True)
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.sub(x, largest)), [1]))
    return fd


DTYPES = (DataType.Float, DataType.BFloat16)
FEW = [(49, DataType.BFloat16), (930, DataType.Float)]
MORE = [at for at in itertools.product(PIXELS, DTYPES) if at not in FEW]
PROGRAMS = [batch_norm, group_norm, positions]
IMAGES = [(5, 24), (40, 2)]


@pytest.mark.campaign
@pytest.mark.parametrize(("pixels", "dtype"), MORE)
@pytest.mark.parametrize(("images", "channels"), IMAGES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_of_further_sizes(
    program: Program, images: int, channels: int, pixels: int, dtype: DataType
) -> None:
    test_numbers(program, images, channels, pixels, dtype)


@each_pair(program=PROGRAMS, **{"images,channels": IMAGES, "pixels,dtype": FEW})
def test_numbers(
    program: Program, images: int, channels: int, pixels: int, dtype: DataType
) -> None:
    """Where channels are few, several blocks share the images of one."""
    definition = program(images, channels, pixels, dtype)
    generator = torch.Generator().manual_seed(pixels)
    inputs = [torch.randn(images, channels, pixels, generator=generator).to(dtype.torch)]
    inputs += [torch.randn(channels, generator=generator)] if program is group_norm else []
    got = definition.execute(inputs)
    assert_close_to_reference(got, definition.fusion.plain, inputs)


SEEDS = (17, 21, 54, 96, 150, 329, 330, 368, 372, 424, 439, 446, 468, 523, 551, 563, 569, 653)
"""Programs of odd sizes that have runs."""


def test_random_programs_between_guard_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [random_case(seed, reductions=True, sizes=(2, 3, 9, 13, 49)) for seed in SEEDS]
    device = HOST.device_info(CPU)
    plans = [CompiledFusion(case.fusion).plan(case.inputs) for case in cases]
    found = [any(isinstance(s.lanes, RunLanes) for s in row_schedules(p, device)) for p in plans]
    assert sum(found) > len(SEEDS) // 2
    check_between_guards(fusions_of(cases), Batch(CPU), monkeypatch)


@pytest.mark.parametrize("pixels", PIXELS)
@pytest.mark.parametrize("program", [batch_norm, group_norm])
def test_vectors_of_a_run_have_no_divisions_of_lanes(program: Program, pixels: int) -> None:
    """A compiler makes vectors of neighbours; lanes whose run is computed are loaded one by one."""
    device = HOST.device_info(CPU)
    plan = CompiledFusion(program(64, 24, pixels, DataType.Float).fusion.plain).plan()
    schedules = row_schedules(plan, device)
    assert schedules
    assert all(isinstance(schedule.lanes, RunLanes) for schedule in schedules)
    sources = [k.kernel.source for k in generate_kernels(plan, device).values()]
    for source in sources:
        # The first vectors of a run have no tests, and no lane of any divides.
        assert source.count("if (inner < ") >= 2
        assert not re.search(r"= 16 \* (u|inner) \+ v;", source)
