"""Row kernels over the schedule space: norms and reductions at shapes on both sides of every choice
(registers, shared memory, several rows a block, rows split over blocks, rows side by side, totals),
for a GPU of each generation.

    python -m tests.tools.shape_sweep                  the front end of the host compiler reads all
    python -m tests.tools.shape_sweep --resources      NVRTC compiles all: spills, slow compilations
    python -m tests.tools.shape_sweep --share 20       every twentieth combination
    python -m tests.tools.shape_sweep --share 20 --offset 3       the same from the fourth on
    python -m tests.tools.shape_sweep --resources --sample 300 --seed 7
                                                   combinations at random, for all architectures
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from tests.frontends.thunder.programs import fake
from tests.support.plans import compiled_for, planned_for
from tests.zoo.norms import NORMS, Norm
from tests.zoo.plan_programs import bias_gelu
from tests.zoo.reductions import REDUCTIONS, Reduction
from thunder_fuser.codegen.headers import template_dir
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import DATACENTER, DATASHEETS
from thunder_fuser.errors import CompileError
from thunder_fuser.frontends.definition import DataType
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.runtime.host.build import host_text
from thunder_fuser.runtime.host.compiler import find_compiler
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.planner import partition

ROWS = (1, 3, 32, 100, 384, 512, 1000, 1024, 4096, 65536)
COLUMNS = (1, 7, 64, 264, 1000, 1024, 4096, 5003, 5120, 16384, 131072)
MORE_COLUMNS = (768, 8192, 32768, 65536)
DTYPES = (DataType.BFloat16, DataType.Float, DataType.Double)
MOST = 2**30
"""Elements of the largest tensor that is planned for."""
UNIT = 400
"""Kernels that the compiler's front end reads at once."""

MOST_SPILLED = 112
"""Bytes of a thread, stored and loaded for each row, which its nearest cache holds: a few words of
kernels whose registers totals and rows fill. To load one row less ahead, or half as many vectors
together, costs 2 to 25 % by the time model.
"""

Planned = tuple[str, SegmentedFusion, DeviceInfo]
"""What a plan is of, and the device that it is for."""
Found = dict[str, tuple[str, str, Kernel]]
"""By name of the kernel: of what it is, for which architecture, and the kernel."""


def kernels(share: int = 1, offset: int = 0) -> Iterator[Found]:
    """Kernels of every `share`-th combination of program, shape and dtype from `offset` on, for all
    of these.
    """
    return _units(itertools.chain(_definitions(share, offset), _traced(share, offset)))


def sampled(count: int, seed: int) -> Iterator[Found]:
    """Kernels of so many combinations of program, shape, dtype and architecture, at random."""
    return _units(_sample(count, random.Random(seed)))


def _units(planned: Iterable[Planned]) -> Iterator[Found]:
    found: Found = {}
    for what, plan, device in planned:
        for generated in generate_kernels(plan, device).values():
            found[generated.kernel.name] = what, device.arch, generated.kernel
        if len(found) >= UNIT:
            yield found
            found = {}
    if found:
        yield found


def _sample(count: int, chosen: random.Random) -> Iterator[Planned]:
    programs: Sequence[Norm | Reduction] = (*NORMS, *REDUCTIONS)
    shapes = [(r, c) for r in ROWS for c in (*COLUMNS, *MORE_COLUMNS) if r * c <= MOST]
    combinations = list(itertools.product(programs, shapes, DTYPES, DATASHEETS.values()))
    for program, (rows, columns), dtype, device in chosen.sample(combinations, count):
        plan = partition(program.definition(rows, columns, dtype).fusion, device=device)
        yield f"{program.name} [{rows}, {columns}] {dtype.name}", plan, device


def _definitions(share: int, offset: int) -> Iterator[Planned]:
    programs: Sequence[Norm | Reduction] = (*NORMS, *REDUCTIONS)
    combinations = itertools.product(programs, ROWS, COLUMNS, DTYPES)
    for program, rows, columns, dtype in itertools.islice(combinations, offset, None, share):
        if rows * columns <= MOST:
            fusion = program.definition(rows, columns, dtype).fusion
            for device in DATACENTER:
                plan = partition(fusion, device=device)
                yield f"{program.name} [{rows}, {columns}] {dtype.name}", plan, device


def _traced(share: int, offset: int) -> Iterator[Planned]:
    """What Thunder makes of a gradient, with roundings between its operations."""
    shapes = itertools.product(ROWS, COLUMNS)
    for rows, columns in itertools.islice(shapes, offset, None, share):
        if rows * columns > MOST:
            continue
        inputs = fake((rows, columns), (columns,), dtype=torch.bfloat16, grad=True)
        for k, plan in enumerate(planned_for(compiled_for(bias_gelu, inputs)).plans):
            for device in DATACENTER:
                yield f"bias_gelu [{rows}, {columns}] fusion {k}", plan, device


def rejected(found: Mapping[str, tuple[str, str, Kernel]]) -> str:
    """What the front end of the host compiler says of these kernels as one program, or ""."""
    compiler = find_compiler()
    arguments = [*compiler.flags, f"-I{template_dir()}", "-fsyntax-only", "-x", "c++", "-"]
    ended = subprocess.run(
        [*compiler.command, *arguments],
        input=host_text([kernel for _, _, kernel in found.values()]),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == 0:
        return ""
    named = [f"{what} on {arch}" for name, (what, arch, _) in found.items() if name in ended.stderr]
    return "\n".join([*named, ended.stderr[:3000]])


def costs(kernel: Kernel, arch: str, slow: float, most_spilled: int = MOST_SPILLED) -> str:
    """What is wrong with a kernel as machine code, or ""."""
    start = time.perf_counter()
    try:
        resources = compile_cubin([kernel], arch).resources[kernel.name]
    except CompileError as error:
        return f"rejected: {error}"
    seconds = time.perf_counter() - start
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    problems = [f"{spilled} bytes spilled"] if spilled > most_spilled else []
    return ", ".join(problems + ([f"{seconds:.1f} s to compile"] if seconds > slow else []))


def spilling(found: Found) -> dict[str, int]:
    """Bytes that kernels spill, if more than there may be: all of an architecture are one program,
    since NVRTC takes most of its time to start and to read the headers.
    """
    problems = {}
    for each in sorted({arch for _, arch, _ in found.values()}):
        made = [kernel for _, arch, kernel in found.values() if arch == each]
        for name, used in compile_cubin(made, each).resources.items():
            bytes_ = used.spill_store_bytes + used.spill_load_bytes
            if bytes_ > MOST_SPILLED:
                problems[f"{found[name][0]} for {each}"] = bytes_
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 if a kernel was rejected, or, with --resources, spills or compiles slowly."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.shape_sweep", description=__doc__)
    parser.add_argument("--share", type=int, default=1, help="every n-th combination")
    parser.add_argument("--offset", type=int, default=0, help="combinations before the first")
    parser.add_argument("--resources", action="store_true", help="compile each with NVRTC")
    parser.add_argument(
        "--slow", type=float, default=0.5, help="seconds of NVRTC that are reported"
    )
    parser.add_argument(
        "--spilled", type=int, default=MOST_SPILLED, help="bytes that are not reported"
    )
    parser.add_argument("--sample", type=int, default=0, help="so many combinations at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    asked = parser.parse_args(arguments)
    count, wrong = 0, []
    chosen = sampled(asked.sample, asked.seed) if asked.sample else None
    for found in chosen or kernels(asked.share, asked.offset):
        count += len(found)
        wrong += [text] if (text := rejected(found)) else []
        if asked.resources:
            for what, arch, kernel in found.values():
                if problem := costs(kernel, arch, asked.slow, asked.spilled):
                    wrong.append(f"{what} for {arch}: {problem}")
    print(*wrong, f"{count:,} kernels, {len(wrong):,} problems", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
