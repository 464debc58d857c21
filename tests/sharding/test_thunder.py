"""DTensors through `thunder.jit`: four gloo processes (thunder_ranks.py), and all ranks of a mesh
in this one, where only placements are torch's and every fusion runs on shards of whole inputs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.sharding.thunder_ranks import ELEMENTWISE, Program, block, jit, numbers, placed
from thunder_fuser import FusionDefinition
from thunder_fuser.frontends.thunder import fusions, refusals
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.sharding import simulate
from thunder_fuser.sharding.rank_program import RankProgram
from thunder_fuser.sharding.recent import LIMIT, Recent

SECONDS = 180
WHOLE = Replicate()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch lacks gloo")
def test_processes(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.sharding.thunder_ranks", str(tmp_path / "meeting")],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert found.stdout.splitlines()[-1:] == ["done"], found.stdout


@pytest.fixture
def world() -> Iterator[None]:
    """A process group of eight whose others are nobody: collectives give what is not theirs."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("program", [*ELEMENTWISE, block], ids=lambda f: f.__name__)
def test_every_rank_of_a_mesh(
    program: Program, world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankProgram, "prepare", lambda program, inputs: None)
    mesh = init_device_mesh("cpu", (2, 4))
    compiled = jit(program)
    wholes = [numbers(8, 16), numbers(16)]
    kinds: list[Sequence[Sequence[Placement]]] = [
        ((Shard(0), Shard(1)), (WHOLE, Shard(0))),
        ((Shard(0), Shard(0)), (WHOLE, WHOLE)),
        ((Partial(), Shard(1)), (Shard(0), WHOLE)),
    ]
    if program is block:
        wholes = [numbers(8, 16), numbers(32, 16), numbers(16, 32)]
        kinds = [((Shard(0), WHOLE), (WHOLE, Shard(0)), (WHOLE, Shard(1)))]
    for kind in kinds:
        leaves = [placed(x, mesh, p) for x, p in zip(wholes, kind, strict=True)]
        y = compiled(*leaves)
        y.backward(torch.ones_like(y))
        reports = fusions(compiled)
        assert reports
        for report in reports:
            fusion, shardings = report.fusion, report.shardings
            assert shardings is not None
            inputs = [numbers(*t.sizes).to(t.dtype.torch) for t in fusion.tensor_inputs]
            expected = evaluate(fusion, inputs).outputs
            torch.testing.assert_close(simulate(shardings, inputs), expected)
    assert not [r for r in refusals(compiled) if r.code == "argument"]


def test_a_table_keeps_the_latest() -> None:
    made: list[int] = []

    def get(k: int) -> Any:
        return table.get(k, lambda: made.append(k))

    table = Recent[Any](2)
    for k in (0, 1, 0, 2, 0, 1):
        get(k)
    assert made == [0, 1, 2, 1]
    assert len(table) == 2


def test_a_loop_whose_sizes_change_keeps_few_programs(
    world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankProgram, "prepare", lambda program, inputs: None)
    mesh = init_device_mesh("cpu", (8,))
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1], contiguity=True)))
    for k in range(LIMIT + 3):
        x = numbers(8 * k + 8).float()
        (y,) = fd.execute_with_dtensors([placed(x, mesh, [Shard(0)]).detach()])
        assert y.shape == (8 * k + 8,)
    kept = fd.ranks.with_dtensors
    assert kept is not None
    assert len(kept) == LIMIT
