"""Tables, reports and the command."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks import compile_time, dynamic_sizes, symint, training
from benchmarks.__main__ import main
from benchmarks.compiling import compiled
from benchmarks.machine import file_stem, model
from benchmarks.table import Column, Table
from benchmarks.training import trained
from benchmarks.workloads import WORKLOADS
from tests.zoo.models import MODELS, Model, Sizes

COLUMNS = (
    Column("name", "name"),
    Column("ms", "seconds", 1e3, 1),
    Column("MB", "bytes", 1e-6, 0),
)


def test_markdown_has_units_and_json_has_none() -> None:
    rows = (
        {"name": "a|b", "seconds": 0.0125, "bytes": 3_000_000_000, "extra": 1},
        {"name": "absent", "seconds": "no compiler"},
    )
    table = Table("Title", "A note.", COLUMNS, rows)
    assert table.markdown() == (
        "## Title\n\nA note.\n\n"
        "| name | ms | MB |\n"
        "| --- | ---: | ---: |\n"
        "| a\\|b | 12.5 | 3,000 |\n"
        "| absent | no compiler |  |\n"
    )
    assert table.data()["rows"][0] == rows[0]
    assert not table.failed
    assert Table("", "", COLUMNS, ({"name": "a", "failed": True},)).failed


def test_a_machine_is_its_model_and_nothing_else() -> None:
    cpu = torch.device("cpu")
    assert model(cpu)
    assert set(file_stem(cpu)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--small --device cpu --filter swiglu --section speed dispatch --seconds 0.01"
    status = main([*arguments.split(), "--peers", "torch", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert status == 0
    stem = tmp_path / file_stem(torch.device("cpu"))
    data = json.loads(stem.with_suffix(".json").read_text())
    assert stem.with_suffix(".md").read_text().rstrip() in printed
    assert data["machines"] == [model(torch.device("cpu"))]
    speed, dispatch = data["tables"]
    assert [row["workload"] for row in speed["rows"]] == ["SwiGLU", "SwiGLU backward"]
    for row in speed["rows"]:
        assert (row["kernels"], row["in_torch"], row["failed"]) == (1, 0, False)
        assert row["thunder_fuser over torch"] == row["thunder_fuser"] / row["torch"] > 0
    rows, columns = 3, 14336
    assert speed["rows"][0]["bytes"] == 3 * rows * columns * 2
    alone = "thunder_fuser, the fusion alone"
    called = ["torch", alone, f"{alone}, above the launch", "thunder_fuser"]
    whole = ["torch", "thunder_fuser"]
    assert [row["called"] for row in dispatch["rows"]] == [*called, *called, *called[:3], *whole]
    regions = {"4 inputs, 2 outputs": 4, "12 inputs, 2 outputs": 4, "11 kernels": 3}
    regions["Llama, 4 layers"] = 2
    assert Counter(row["region"] for row in dispatch["rows"]) == regions


def test_training_steps_are_compared_with_eager_before_they_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    (model,) = (m for m in MODELS if m.name == "Llama")
    shallow = replace(model, small=replace(model.small, layers=1))
    monkeypatch.setattr(training, "MODELS", [shallow])
    rows = trained(cpu, ["thunder_fuser", "torch"], 0.01, "llama", small=True).rows
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    for row in rows:
        assert row["kernels"] > 5
        assert row["over torch"] == row["thunder_fuser"] / row["torch"] > 0
    monkeypatch.setattr(training, "_DTYPES", (torch.float32,))
    monkeypatch.setattr(training, "_distance", lambda *of: next(distances))
    distances = iter((1e-3, 3e-3))
    (row,) = trained(cpu, ["thunder_fuser"], 0.01, "llama", small=True).rows
    assert row["failed"]
    assert row["thunder_fuser"].startswith("wrong: gradients")


def test_without_a_gpu_asking_for_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        main(["--device", "cuda"])
    assert "torch finds no CUDA device" in capsys.readouterr().err


@pytest.mark.nvrtc
def test_plans_and_machine_code_of_full_sizes_need_no_gpu() -> None:
    (workload,) = (w for w in WORKLOADS if w.name == "cat + relu")
    (row,) = compiled([workload], "full").rows
    rows, columns = 8192, 8192
    assert row["bytes"] == row["ideal"] == 4 * rows * columns * 2
    assert (row["kernels"], row["in_torch"], row["spilled"]) == (1, 0, 0)
    assert row["registers"] > 0
    assert min(row[key] for key in ("tracing", "planning", "code", "nvrtc", "host")) > 0


@pytest.mark.nvrtc
def test_a_backward_is_compiled_alone_and_in_one_program_with_its_forward() -> None:
    names = ["RMSNorm", "RMSNorm backward"]
    rows = compiled([w for w in WORKLOADS if w.name in names], "small").rows
    assert [row["workload"] for row in rows] == [*names, "RMSNorm + backward"]
    assert [row["kernels"] for row in rows] == [1, 1, 2]
    for row in rows:
        assert row["cubins"] == row["planning"] + row["code"] + row["nvrtc"]


def test_forms_have_a_table() -> None:
    rows = symint.table().rows
    assert [row["expression"] for row in rows] == list(symint.EXPRESSIONS)
    assert rows[0]["form"] == "`u`"


def test_first_calls_are_compiled_in_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_time, "compiled_by_torch", lambda net: net)
    (model,) = (m for m in MODELS if m.name == "GPT-2")
    (row,) = compile_time._rows(model, [1])
    assert not row.get("failed"), row["ours"]
    assert row["kernels"] > 5
    assert row["calls"] > 10_000
    assert 0 < row["planning"] < row["python"]
    # A compiler ran: nothing was found in a cache.
    assert row["compilers"] > 0


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(self.linear(x), (16,)).square().mean()


def test_further_sizes_need_fewer_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_sizes, "compiled_by_torch", lambda net: net)
    sizes = Sizes(1, 16, 1, 32, 16, 1)
    model = Model(
        "small", lambda _: Normed(), lambda s, *_: [torch.randn(s.length, 16)], sizes, sizes
    )
    ours, static, torchs = dynamic_sizes._rows(model, [33, 35, 37])
    assert not any(row.get("failed") for row in (ours, static, torchs))
    assert 0 < ours["kernels"] < static["kernels"]
    assert "kernels" not in torchs
