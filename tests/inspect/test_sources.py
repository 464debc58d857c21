"""Reports of whatever holds a program: modules under thunderfx and thunder.distributed, traces,
definitions, plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from thunder.distributed import ddp, fsdp
from thunder.dynamo import thunderfx

from tests.frontends.thunder.programs import jit
from tests.support.page_elements import Elements
from thunder_fuser.errors import FuserTypeError
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.frontends.thunder import fusions
from thunder_fuser.inspect import Report, report
from thunder_fuser.inspect.data.lines import by_line
from thunder_fuser.inspect.data.program import FREE, Part, Program, Step

HERE = Path(__file__).name


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def in_two_graphs(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * 2
    torch._dynamo.graph_break()
    return (y.cos() * y).sum()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process, of which all collectives are made all the same."""
    if torch.distributed.is_initialized():
        pytest.skip("a process group is there")
    file = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{file}")
    yield
    torch.distributed.destroy_process_group()


def checked(made: Report) -> Program:
    """A report's page, data and text hold together."""
    Elements(made._repr_html_())
    assert len(str(made).splitlines()) <= 60
    program = made.program
    assert [s.number for s in program.steps] == list(range(len(program.steps)))
    assert [part.first for part in program.parts[1:]] == [p.stop for p in program.parts[:-1]]
    for name in {n for s in program.steps for n in (*s.reads, *s.writes)}:
        assert name in program.tensors
    for step in program.steps:
        assert step.fusion == "" or step.fusion in program.details[step.detail or 0].names
    assert sum(line.bytes for line in by_line(program)) == sum(
        s.bytes for s in program.steps if s.kind not in FREE
    )
    return program


@pytest.mark.parametrize("wrapped", [ddp, lambda m: fsdp(m, device=torch.device("cpu"))])
def test_a_module_under_thunder_distributed(group: None, wrapped: Any) -> None:
    module = wrapped(jit(MLP()))
    module(torch.randn(4, 8)).sum().backward()
    program = checked(report(module))
    assert program.name == "MLP"
    assert program.kernels == sum(f.plan.kernels for f in fusions(module))
    talk = [s for s in program.steps if s.kind == "communication"]
    assert program.collectives == sum(s.bytes > 0 for s in talk) > 0
    # What waits for a collective moves nothing more.
    assert any(s.bytes == 0 for s in talk)
    assert "collective" in str(Report(program))


def test_a_module_under_thunderfx() -> None:
    module = thunderfx(MLP(), executors=["thunder_fuser"])
    module(torch.randn(4, 8)).sum().backward()
    program = checked(report(module))
    assert (program.name, [p.title for p in program.parts]) == ("MLP", ["forward", "backward"])
    # Lines are the user's, and not those of Dynamo's text.
    lines = {line for s in program.steps for line in s.lines}
    assert {Path(line.rpartition(":")[0]).name for line in lines} == {HERE}


def test_graphs_of_one_function_are_told_apart() -> None:
    function = thunderfx(in_two_graphs, executors=["thunder_fuser"])
    function(torch.randn(4, 8, requires_grad=True)).backward()
    program = checked(report(function))
    assert program.name == "in_two_graphs"
    assert [p.title for p in program.parts] == [
        *("graph 0, forward", "graph 1, forward", "graph 1, backward", "graph 0, backward")
    ]
    assert program.kernels == sum(f.plan.kernels for f in fusions(function)) == 4
    names = [s.name for s in program.steps if s.is_ours]
    assert len(set(names)) == len(names)
    assert {line.line.partition(":")[0] for line in by_line(program)} == {
        HERE,
        f"gradient of {HERE}",
    }


def test_traces_fusions_and_plans() -> None:
    module = jit(MLP())
    module(torch.randn(4, 8)).sum().backward()
    whole = checked(report(module))
    forward, backward = thunder.last_traces(module)[-1], thunder.last_backward_traces(module)[-1]
    both = checked(report([forward, backward]))
    assert [s.key for s in both.steps] == [s.key for s in whole.steps]
    assert both.saved_bytes == whole.saved_bytes
    alone = checked(report(forward))
    assert alone.kernels == sum(s.kernels for s in whole.of(whole.parts[0]))
    # Before its passes a trace is torch calls alone.
    assert checked(report(thunder.last_traces(module)[0])).kernels == 0
    fusion = fusions(module)[0]
    of_fusion = checked(report(fusion))
    assert (of_fusion.name, of_fusion.bytes) == (fusion.name, fusion.plan.bytes)
    assert checked(report(fusion.plan)).bytes == fusion.plan.bytes
    with pytest.raises(FuserTypeError, match=r"expected one source, .* got \(1, 2\)"):
        report((1, 2))


@pytest.mark.parametrize("shape", [(64, 128), (-1, -1)])
def test_a_definition_before_and_after_it_runs(shape: tuple[int, int]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=shape, contiguity=True)
        centred = fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True))
        fd.add_output(fd.ops.mul(centred, fd.ops.sum(centred, [0])))
    before = checked(report(fd))
    assert (before.kernels, len(before.apart), before.refusals) == (2, 1, ())
    fd.execute([torch.randn(64, 128)])
    after = checked(report(fd))
    assert after.kernels == 2
    titles = [title for title, _ in after.details[0].sections]
    assert any(title.startswith("source that ran") for title in titles)
    assert {k.segment for k in after.details[0].kernels} == {0, 1}


def test_fusions_of_a_trace_are_pieces_of_one_work() -> None:
    """Of which a terminal is told while they are compiled."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (((x.sin() @ w).exp() @ w).exp() @ w).tanh()

    compiled = jit(program)
    compiled(torch.randn(4, 4), torch.randn(4, 4))
    calls = [f._call.compiled for f in fusions(compiled)]
    assert len(calls) == 4
    # The two exponentials are one.
    assert len({id(call) for call in calls}) == 3
    (work,) = {call.among for call in calls}
    assert work is not None
    assert work._done == work._total == 3


def test_equal_fusions_say_once_why_they_are_several_kernels() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x - x.sum(1, keepdim=True)
            x = (x * x.sum(0)) @ w
        return x

    compiled = jit(program)
    compiled(torch.randn(64, 128), torch.randn(128, 128))
    made = report(compiled)
    told = checked(made)
    assert [(one.code, one.count) for one in told.apart] == [("total", 4)]
    assert " ".join(str(made).split()).count(told.apart[0].text) == 1


def test_every_part_has_its_share_of_a_screen() -> None:
    steps = [
        Step(k, k // 90, "pointwise", f"f{k}", f"f{k}", (), (), (), 1, 1, f"{k}", kernels=1)
        for k in range(100)
    ]
    parts = (Part("forward", 0, 90), Part("backward", 90, 100))
    lines = str(Report(Program("two parts", parts, tuple(steps), {}))).splitlines()
    assert len(lines) <= 60
    assert sum(line.startswith("  f9") for line in lines) == 11
    assert "  and " in "\n".join(lines)
