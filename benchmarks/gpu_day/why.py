"""Stage 5: why kernels take as long as they do: hardware counters, memory errors and races, and
other schedules of the same plans.
"""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpu_day import kernels
from benchmarks.gpu_day.rows import Row, Settings, Values
from benchmarks.gpu_day.speed import programs
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import compile_plan
from thunder_fuser.device import DeviceInfo
from thunder_fuser.runtime.cuda.target import CUDA, CudaLaunch
from thunder_fuser.runtime.target import planned_for
from thunder_fuser.segment.plan import SegmentedFusion

PROFILED = (
    "program RMSNorm [8192, 4096], forward",
    "program RMSNorm [8192, 4096], backward",
    "program LayerNorm [8192, 4096], backward",
    "program softmax [4096, 32768], forward",
    "program softmax [4096, 32768], backward",
    "program cross-entropy [4096, 128256], forward",
    "program cross-entropy [4096, 128256], backward",
    "program bias + GELU [8192, 16384], forward",
    "program bias + GELU [8192, 16384], backward",
    "program SwiGLU [8192, 14336], backward",
    "program transpose + add [16384, 16384], forward",
    "definition Fuser 2473, backward of a modulated norm",
)
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_xu.sum",
    "sm__inst_executed_pipe_alu.sum",
    "sm__inst_executed_pipe_fma.sum",
    "sm__inst_executed_pipe_lsu.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "lts__t_sectors_op_read.sum",
)
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZED = {
    "barriers": "tests/codegen/test_grid_reductions.py tests/codegen/test_reduction_kernel.py",
    "clusters and asynchronous copies": (
        "tests/codegen/test_clusters.py tests/codegen/test_async_copies.py"
    ),
    "workloads": "tests/test_workloads.py",
}
SWEPT = tuple(name for name in PROFILED if "transpose" not in name)
BLOCKS, IN_FLIGHT_KIB = (256, 512, 1024), (16, 32, 48, 64, 96)


def rows(settings: Settings) -> Sequence[Row]:
    if settings.dry:
        return [Row(f"sweep {name}", partial(_sweep, name, settings), needs="") for name in SWEPT]
    return [*_counters(), *_sweeps(settings), *_sanitized()]


# ---- hardware counters


def _counters() -> Iterator[Row]:
    for name in PROFILED:
        yield Row(f"counters {name}", partial(_profile, name), limit=60)


def _profile(name: str) -> Values:
    ncu = shutil.which("ncu")
    assert ncu, "Nsight Compute (ncu) is not on the PATH"
    command = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--metrics"]
    command += [",".join(METRICS), "--kernel-name", "regex:^tf_", "--launch-skip", "2"]
    command += [sys.executable, "-m", "benchmarks.gpu_day.why", name]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    table = ended.stdout[ended.stdout.find('"ID"') :]
    assert table, (ended.stdout + ended.stderr)[-1000:]
    head, _units, *lines = csv.reader(io.StringIO(table))
    found = [dict(zip(head, line, strict=False)) for line in lines]
    wanted = ("Kernel Name", *METRICS)
    return {"launches": [{key: row.get(key, "") for key in wanted} for row in found[-8:]]}


def launch_alone(name: str) -> None:
    """Three runs of a row's fusions: what a profiler is attached to."""
    plans = dict(programs())[name]()
    device = torch.device("cuda", torch.cuda.current_device())
    for plan in plans:
        if plan.kernels:
            run, inputs = compile_plan(plan, device, CUDA), kernels.inputs_for(plan, device)
            for _ in range(3):
                run(inputs)
    torch.cuda.synchronize()


# ---- compute-sanitizer


def _sanitized() -> Iterator[Row]:
    for tool in TOOLS:
        for what, tests in SANITIZED.items():
            name = f"compute-sanitizer {tool}: {what}"
            yield Row(name, partial(_sanitize, tool, tests), limit=120, isolated=True)


def _sanitize(tool: str, tests: str) -> Values:
    sanitizer = shutil.which("compute-sanitizer")
    assert sanitizer, "compute-sanitizer is not on the PATH"
    # cuda-python asks the driver for functions that it may not have: no error of a kernel.
    command = [sanitizer, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9"]
    command += ["--print-limit", "5", sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-x"]
    command += tests.split()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:]
    return {"last line": ended.stdout.strip().splitlines()[-1]}


# ---- other schedules


def _sweeps(settings: Settings) -> Iterator[Row]:
    for name in SWEPT:
        yield Row(f"sweep {name}", partial(_sweep, name, settings), limit=60)


class _Described:
    """The CUDA target with the description of another device: only schedules change."""

    name = "cuda"

    def __init__(self, info: DeviceInfo) -> None:
        self._info = info

    def device_info(self, device: torch.device) -> DeviceInfo:
        return self._info

    def compile(self, found: Sequence[Kernel]) -> tuple[CudaLaunch, ...]:
        return CUDA.compile(found)


def _sweep(name: str, settings: Settings) -> Values:
    """The same plans scheduled for devices with other blocks and other latencies, and for one
    without thread block clusters.
    """
    plans = [plan for plan in dict(programs())[name]() if plan.kernels]
    actual = planned_for(torch.device("cuda"))
    devices: list[tuple[Values, DeviceInfo]] = [
        ({"clusters": False}, replace(actual, clusters=())),
    ]
    for threads, kib in itertools.product(BLOCKS, IN_FLIGHT_KIB):
        info = replace(actual, max_threads_per_block=threads, bytes_in_flight_per_sm=kib << 10)
        devices.append(({"block": threads, "KiB in flight": kib}, info))
    found = []
    for result, info in devices:
        try:
            result |= _scheduled(plans, info, settings)
        except Exception as error:  # a schedule that does not fit is a result, too
            result["error"] = f"{type(error).__name__}: {error}"[:200]
        found.append(result)
    return {"schedules": found}


def _scheduled(plans: Sequence[SegmentedFusion], info: DeviceInfo, settings: Settings) -> Values:
    if settings.dry:
        generated = [k for p in plans for k in kernels.generate_kernels(p, info).values()]
        return {"threads": [k.kernel.block[0] for k in generated]}
    device = torch.device("cuda", torch.cuda.current_device())
    calls: list[Callable[[], object]] = []
    for plan in plans:
        run, inputs = compile_plan(plan, device, _Described(info)), kernels.inputs_for(plan, device)
        calls.append(partial(run, inputs))
    return {"seconds": sum(kernels.replay_seconds(call, 0.1) for call in calls)}


if __name__ == "__main__":
    launch_alone(sys.argv[1])
