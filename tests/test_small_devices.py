"""Random fusions on devices that have little of everything: what sizes decide, decided otherwise.

Schedules ask whether something fits: a table into a cache, a row into registers, blocks onto a
device. Tests have small tensors, for which the answer would always be the same one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.batch import Batch, checked, fusions_of
from tests.support.generator import Case, random_case
from tests.support.seeds import blocks
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.host.target import HOST

CPU = torch.device("cpu")
_KIB = 1024
HOST_INFO = HOST.device_info(CPU)
LITTLE_CACHE = replace(HOST_INFO, l2_bytes=64)
LITTLE_HOST = replace(
    LITTLE_CACHE, vector_bytes=16, shared_bytes_per_block=2 * _KIB, shared_bytes_per_sm=2 * _KIB
)
LITTLE_GPU = replace(
    H200,
    sm_count=1,
    l2_bytes=64,
    shared_bytes_per_block=16 * _KIB,
    shared_bytes_per_sm=16 * _KIB,
    max_threads_per_block=256,
    threads_per_sm=512,
    registers_per_sm=16384,
)


def case(seed: int) -> Case:
    return random_case(seed, gathers=seed % 2 == 0, reductions=seed % 3 == 0)


@pytest.mark.parametrize(
    "info", [LITTLE_CACHE, LITTLE_HOST, LITTLE_GPU], ids=["cache", "host", "gpu"]
)
@blocks(40, 20, always=20)
def test_random_fusions_equal_float64_where_nothing_fits(info: DeviceInfo, first: int) -> None:
    early = []
    cases = map(case, range(first, first + 20))
    for _, plan, _ in checked(fusions_of(cases), Batch(CPU, info), CPU):
        kernels = generate_kernels(plan, info).values()
        early += ["TF_PREFETCH(" in k.kernel.source for k in kernels]
    assert sum(early) > 0 or info is LITTLE_GPU
    assert not all(early)


def rows_of_a_table(rows: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        table = fd.define_tensor([rows, 64], True, DataType.Float)
        index = fd.define_tensor([50], True, DataType.Int)
        fd.add_output(fd.ops.neg(fd.ops.embedding_fwd(index, table)))
    return fd


@pytest.mark.parametrize("bytes_beyond", [0, 256])
def test_a_table_may_be_larger_than_every_cache(bytes_beyond: int) -> None:
    rows = (HOST_INFO.l2_bytes + bytes_beyond) // 256
    inputs = [torch.randn(rows, 64), torch.arange(50) * (rows // 50)]
    (found,) = rows_of_a_table(rows).execute(inputs)
    assert torch.equal(found, -inputs[0][inputs[1]])
