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

SWEPT = (
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
    "definition Fuser 2473, backward of a modulated norm",
)
PROFILED = (
    *SWEPT,
    "program LayerNorm [8192, 4096], forward",
    "program transpose + add [16384, 16384], forward",
    "program BatchNorm [64, 256, 56, 56], forward",
    "program BatchNorm, channels last, forward",
    "program LayerNorm, modulated [56, 1024, 1024], forward",
    "program dropout(x) + r, and its RMSNorm, backward",
    "definition RoPE of Llama-3, backward",
)
STALLS = (
    *("barrier", "branch_resolve", "dispatch_stall", "drain", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected"),
    *("short_scoreboard", "sleeping", "wait"),
)
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
    "lts__t_sectors_op_read.sum",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_xu.sum",
    "sm__inst_executed_pipe_alu.sum",
    "sm__inst_executed_pipe_fma.sum",
    "sm__inst_executed_pipe_lsu.sum",
    "sm__warps_active.avg.per_cycle_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    *(f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio" for why in STALLS),
)
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZED = {
    "barriers": "tests/codegen/test_grid_reductions.py tests/codegen/test_reduction_kernel.py",
    "clusters and asynchronous copies": (
        "tests/codegen/test_clusters.py tests/codegen/test_async_copies.py"
    ),
    "workloads": "tests/test_workloads.py",
}
BLOCKS, IN_FLIGHT_KIB = (256, 512, 1024), (16, 32, 48, 64, 96)


def rows(settings: Settings) -> Sequence[Row]:
    if settings.dry:
        return [Row(f"sweep {name}", partial(_sweep, name, settings), needs="") for name in SWEPT]
    counters = Row("counters", partial(_profile, PROFILED), limit=150)
    return [counters, *_sweeps(settings), *_sanitized()]


# ---- hardware counters


def _profile(names: Sequence[str]) -> Values:
    """One process for all of them: Nsight Compute starts slowly."""
    ncu = shutil.which("ncu")
    assert ncu, "Nsight Compute (ncu) is not on the PATH"
    command = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--metrics"]
    command += [",".join(METRICS), "--kernel-name", "regex:^tf_", "--profile-from-start", "off"]
    command += [sys.executable, "-m", "benchmarks.gpu_day.why", *names]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    table = ended.stdout[ended.stdout.find('"ID"') :]
    assert table, (ended.stdout + ended.stderr)[-1000:]
    head, _units, *lines = csv.reader(io.StringIO(table))
    measured = [dict(zip(head, line, strict=False)) for line in lines]
    plans_of = dict(programs())
    launched = [name for name in names for plan in plans_of[name]() for _ in range(plan.kernels)]
    assert len(launched) == len(measured), (len(launched), len(measured), ended.stderr[-1000:])
    wanted = ("Kernel Name", *METRICS)
    found = zip(launched, measured, strict=True)
    return {"launches": [{"of": name} | {k: row.get(k, "") for k in wanted} for name, row in found]}


def launch_alone(names: Sequence[str]) -> None:
    """Three runs of the fusions of each row, the last of which is for a profiler."""
    plans_of = dict(programs())
    device = torch.device("cuda", torch.cuda.current_device())
    for name in names:
        for plan in plans_of[name]():
            if plan.kernels:
                run, inputs = compile_plan(plan, device, CUDA), kernels.inputs_for(plan, device)
                for _ in range(2):
                    run(inputs)
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                run(inputs)
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()


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
    launch_alone(sys.argv[1:])
