"""The time model against what an H200 took, of kernels that are still the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu_day.calibration import calibration

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "nvidia-h200"
OFF = {
    "workload add": 0.05,
    "workload SwiGLU": 0.05,
    "workload residual chain": 0.05,
    "workload transpose + add": 0.05,
    "program sin(x), cos(x), forward": 0.05,
    "program softmax [4096, 32768], forward": 0.05,
    "program RMSNorm [8192, 4096], backward": 0.08,
    "program BatchNorm [64, 256, 56, 56], forward": 0.08,
    "program RMSNorm of x + r [16, 64], forward": 0.15,
}
"""What a row may be off by: bound by memory, by issue slots, by both; by what blocks of a cluster
wait for; by its launch.
"""


@pytest.mark.filterwarnings("ignore")
def test_the_time_model_says_what_a_gpu_measured() -> None:
    table = calibration([RESULTS / "speed.jsonl", RESULTS / "peers.jsonl"], names=list(OFF))
    rows = {row["row"]: row for row in table.rows if row["kernels"] == "measured"}
    assert len(rows) >= 4
    wrong = {name: row["off"] for name, row in rows.items() if abs(row["off"]) > OFF[name]}
    assert not wrong
