"""Compiled functions planned for a mesh by the names of their parameters, without a device."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
import thunder
import torch
from torch import Tensor, nn

import thunder_fuser
from thunder_fuser import FusionDefinition
from thunder_fuser.__main__ import main
from thunder_fuser.device_table import H200
from thunder_fuser.errors import FuserValueError
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.sharding import DeviceMesh, Replicate, Shard, simulate

MESH = DeviceMesh((2, 2), ("dp", "tp"))
WIDTH, HIDDEN, WORDS, BATCH, LENGTH = 8, 16, 256, 4, 16


class Gated(nn.Module):
    """Words, a gated MLP beside them, and logits of each word."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = torch.tanh(self.table(words))
        x = x + self.down(torch.sigmoid(self.gate(x)) * self.up(x))
        return self.head(torch.tanh(x))


PLACED = {
    "words": {"dp": 0},
    "table.weight": {"tp": 0},
    "gate.*": {"tp": 0},
    "up.weight": {"tp": 0},
    "down.weight": {"tp": 1},
    "head.weight": {"tp": 0},
}


def test_a_module_on_a_mesh_communicates_what_megatron_does() -> None:
    torch.manual_seed(0)
    module = Gated().double()
    compiled = thunder.jit(module, executors=[thunder_fuser.executor])
    words = torch.randint(0, WORDS, (BATCH, LENGTH))
    compiled(words).square().sum().backward()
    forward, backward = thunder_fuser.mesh_plans(compiled, MESH, PLACED)
    # An embedding from a table in parts, and the MLP's product; backward, one for the two products
    # of the MLP's input together, and one for the head's.
    local = BATCH // 2 * LENGTH * WIDTH * 8
    assert [(v.axis, v.kind, v.count, v.bytes) for v in forward.volumes] == [
        ("tp", "all_reduce", 2, 2 * local)
    ]
    assert ("tp", "all_reduce", 2, 2 * local) in [
        (v.axis, v.kind, v.count, v.bytes) for v in backward.volumes
    ]
    assert forward.seconds > 0
    assert backward.seconds > 0
    # Each half is right on four simulated ranks.
    for plan in (forward, backward):
        fusion = plan.shardings.fusion
        given = [
            torch.randint(0, WORDS, t.sizes)
            if not t.dtype.is_floating
            else torch.randn(t.sizes, dtype=torch.float64)
            for t in fusion.tensor_inputs
        ]
        torch.testing.assert_close(simulate(plan.shardings, given), evaluate(fusion, given).outputs)
    names = {name: t for t, name in backward.names.items()}
    assert backward.shardings.given[names["up.weight"]] == (Replicate(), Shard(0, 8, 2))
    # Gradients are placed as their parameters are.
    gradients = [backward.shardings.given[t] for t in backward.shardings.fusion.outputs]
    assert gradients.count((Replicate(), Shard(0, 8, 2))) == 2
    made = thunder_fuser.report(backward)
    steps = [s for s in made.program.steps if s.kind == "communication"]
    assert len(steps) == sum(v.count for v in backward.volumes)
    assert any("Partial(sum) -> Replicate" in reason for s in steps for reason in s.reasons)


def test_names_that_nothing_has_and_sizes_that_do_not_divide() -> None:
    compiled = thunder.jit(nn.Linear(6, 4), executors=[thunder_fuser.executor])
    with pytest.raises(FuserValueError, match="has not been called yet"):
        thunder_fuser.mesh_plans(compiled, MESH, {})
    compiled(torch.randn(2, 6))
    with pytest.raises(FuserValueError, match=r"no argument .* named 'wait'; near are weight"):
        thunder_fuser.mesh_plans(compiled, MESH, {"wait": {"tp": 0}})
    with pytest.raises(FuserValueError, match="the mesh has no axis 'x'"):
        thunder_fuser.mesh_plans(compiled, MESH, {"weight": {"x": 0}})
    with pytest.raises(FuserValueError, match="weight: dimension 2 of a tensor of sizes"):
        thunder_fuser.mesh_plans(compiled, MESH, {"weight": {"tp": 2}})
    with pytest.raises(FuserValueError, match="4 is no multiple of 3"):
        thunder_fuser.mesh_plans(compiled, DeviceMesh((3,), ("tp",)), {"weight": {"tp": 0}})
    plan, _ = thunder_fuser.mesh_plans(compiled, MESH, {"weight": {"dp": 0, "tp": 0}})
    (weight,) = [t for t, name in plan.names.items() if name == "weight"]
    assert plan.shardings.given[weight] == (Shard(0, 2, 2), Shard(0, 1, 2))


def test_calls_that_no_table_has_are_cut_out() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.linalg.inv(torch.exp(x)) + 1.0

    compiled = thunder.jit(program, executors=[thunder_fuser.executor])
    compiled(torch.randn(4, 4))
    (plan,) = thunder_fuser.mesh_plans(compiled, DeviceMesh((2,), ("tp",)), {"x": {"tp": 0}})
    assert len(plan.shardings.fusion.tensor_inputs) == 2
    assert len(plan.shardings.fusion.outputs) == 2


def test_a_definition_is_placed_by_its_names() -> None:
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor(shape=s, contiguity=True) for s in ([-1, 16], [8, 16]))
        fd.add_output(fd.ops.exp(fd.ops.linear(x, w)))
    whole = [torch.empty(4, 16), torch.empty(8, 16)]
    plan = fd.mesh_plan(whole, DeviceMesh((4,), ("tp",)), {"T*": {"tp": 1}})
    assert dict(plan.collectives) == {"all_reduce": 1}


def test_collectives_cost_steps_and_bytes() -> None:
    near, far = H200.link(8), H200.link(9)
    assert near is not None
    assert far is not None
    assert (near.name, far.name) == ("NVLink", "network")
    assert near.seconds(450e9, 0) == 1.0
    assert near.seconds(0, 7) == pytest.approx(7 * near.latency)

    def seconds(mesh: DeviceMesh, axis: str) -> float:
        with FusionDefinition() as fd:
            x = fd.define_tensor(shape=[64, 64], contiguity=True)
            fd.add_output(fd.ops.sum(x, dims=[0]))
        return fd.mesh_plan((), mesh, {"T0": {axis: 0}}).link_seconds

    near_by, far_away = (seconds(DeviceMesh((8, 8), ("a", "b")), axis) for axis in "ba")
    # 14 steps, of which those of the network are slower.
    assert far_away - near_by > 14 * (far.latency - near.latency)
    assert seconds(DeviceMesh((2,), ("a",)), "a") < near_by


def test_explain_for_a_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        dedent(
            """
            import torch, thunder, thunder_fuser
            f = thunder.jit(torch.nn.Linear(64, 16), executors=[thunder_fuser.executor])
            f(torch.ones(8, 64))
            """
        )
    )
    page = tmp_path / "page.html"
    command = ["explain", "--fake", "--mesh", "dp2xtp4", "--shard", "weight=tp:1"]
    assert main([*command, "--html", str(page), str(script)]) == 0
    told = capsys.readouterr()
    assert "mesh dp 2 x tp 4 (8 devices); each rank holds" in told.out
    assert "tp: 1 all_reduce, 768 B over NVLink" in told.out
    assert "replicated" in told.out
    pages = [p.read_text() for p in sorted(tmp_path.glob("page-*.html"))]
    assert ["communication" in p for p in pages][-1]
    assert main(["explain", "--fake", "--mesh", "4", "--json", str(script)]) == 0
    text = capsys.readouterr().out
    parsed, _ = json.JSONDecoder().raw_decode(text[text.rindex('\n{\n "name"') + 1 :])
    assert parsed["name"] == "backward"
    assert main(["explain", "--mesh", "two", str(script)]) == 1
    assert "mesh 'two'" in capsys.readouterr().err
