"""What observers of a compilation are shown: every stage in order; logs and numbered files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thunder_fuser
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import options
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.observers import Stage, observing
from thunder_fuser.passes import PIPELINE
from thunder_fuser.segment.plan import SegmentedFusion


def cut_norm() -> FusionDefinition:
    """Two kernels, and a product that a pass removes."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 16], True, DataType.Float)
        total = fd.ops.sum(fd.ops.mul(x, 1.0), [1], keepdim=True)
        fd.add_output(fd.ops.neg(fd.ops.segment_set(fd.ops.div(x, total))))
    return fd


def seen(definition: FusionDefinition, inputs: list[torch.Tensor]) -> list[tuple[Stage, object]]:
    """The stages of what a call compiles."""
    found: list[tuple[Stage, object]] = []
    with observing(lambda stage, value: found.append((stage, value))):
        definition.execute(inputs)
    return found


def test_the_stages_of_a_call_in_order() -> None:
    stages = seen(cut_norm(), [torch.randn(8, 16)])
    names = [stage.name for stage, _ in stages]
    turns = [name for name in names if name.startswith("passes.")]
    assert turns[: len(PIPELINE)] == [f"passes.{apply.__name__}" for apply in PIPELINE]
    others = [name for name in names if not name.startswith("passes.")]
    assert others[:2] == ["fusion", "plan"]
    assert others[-7:] == [*(2 * ["schedule", "kernel ir", "kernel"]), "machine code"]
    assert [stage.number for stage, _ in stages] == list(range(len(stages)))
    assert all(stage.subject == "definition" and stage.seconds >= 0 for stage, _ in stages)
    kinds = {
        "fusion": Fusion,
        "plan": SegmentedFusion,
        "kernel ir": KernelIR,
        "kernel": Kernel,
        "machine code": tuple,
    }
    for stage, value in stages:
        assert isinstance(value, kinds.get(stage.name, object))


def test_a_call_that_compiles_nothing_shows_nothing() -> None:
    definition, inputs = cut_norm(), [torch.randn(8, 16)]
    definition.execute(inputs)
    assert seen(definition, inputs) == []


def test_a_pass_that_finds_nothing_says_so() -> None:
    stages = seen(cut_norm(), [torch.randn(8, 16)])
    passes = [(s, value) for s, value in stages if s.name.startswith("passes.")]
    before = next(value for s, value in stages if s.name == "fusion")
    for stage, value in passes:
        assert stage.changed == (value is not before)
        before = value
    assert any(s.changed for s, _ in passes)
    assert not all(s.changed for s, _ in passes)


def test_what_an_observer_raises_is_raised() -> None:
    def refuse(stage: Stage, value: object) -> None:
        raise ZeroDivisionError(stage.name)

    with observing(refuse), pytest.raises(ZeroDivisionError, match="fusion"):
        cut_norm().execute([torch.randn(8, 16)])


def test_every_stage_has_a_numbered_file(tmp_path: Path) -> None:
    with options(dump_dir=str(tmp_path)):
        cut_norm().execute([torch.randn(8, 16)])
        cut_norm().execute([torch.randn(8, 16)])  # the same again: the same files
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("definition-")
    files = sorted(folder.iterdir())
    numbers = [int(path.name.split("-")[0]) for path in files]
    assert numbers == sorted(set(numbers))
    assert files[0].name == "00-fusion.fusion"
    assert "fd.ops.mul" in files[0].read_text()
    after_a_pass = [path for path in files if "-passes." in path.name]
    assert after_a_pass
    assert "fd.ops.mul" not in after_a_pass[-1].read_text()
    (plan,) = (path for path in files if path.suffix == ".plan")
    assert "2 kernels" in plan.read_text()
    statements = [path.read_text() for path in files if path.suffix == ".kir"]
    assert len(statements) == 2
    assert "kernel reduction sum div" in statements[0]
    assert "kernel pointwise neg" in statements[1]
    line = cut_norm.__code__.co_firstlineno + 4
    assert f"# reduction 0: sum (test_observers.py:{line})" in statements[0]
    kernels = [path for path in files if path.suffix == ".cu"]
    assert f"// reduction 0: sum (test_observers.py:{line})" in kernels[0].read_text()
    assert len(kernels) == 2
    assert all('#include "prelude.cuh"' in path.read_text() for path in kernels)
    assert kernels[0].read_text() != kernels[1].read_text()
    assert files[-1].name.endswith("-machine_code.txt")


def test_a_trace_is_the_first_file_of_a_function(tmp_path: Path) -> None:
    thunder = pytest.importorskip("thunder")
    function = thunder.jit(lambda x: torch.relu(x) * 2, executors=[thunder_fuser.executor])
    with options(dump_dir=str(tmp_path)):
        function(torch.randn(3))
    folders = {path.name.rsplit("-", 1)[0]: path for path in tmp_path.iterdir()}
    assert set(folders) == {"thunder_fuser", "fuser0"}
    before, after = sorted(folders["thunder_fuser"].iterdir())
    assert "fuser0" not in before.read_text()
    assert "fuser0" in after.read_text()
