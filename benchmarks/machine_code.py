"""Instructions of generated kernels, by architecture: no GPU runs, and no machine changes a figure.

python -m benchmarks.machine_code                  the table
python -m benchmarks.machine_code --filter GELU    some rows
python -m benchmarks.machine_code --out            also into benchmarks/results/sass.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_day.speed import Plans, programs
from benchmarks.planning import planned
from benchmarks.table import Column, Table
from benchmarks.workloads import WORKLOADS
from tests.tools import sass
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device import DeviceInfo
from thunder_fuser.device_table import A100, B200, H200
from thunder_fuser.runtime.cuda.nvrtc import Resources, compile_cubin

DEVICES = (A100, H200, B200)
OUT = Path(__file__).parent / "results" / "sass.md"
_SLOW_PATH = 24
"""Instructions at most that a branch jumps over if they call a subroutine: a rare operand's."""
_NOTE = (
    "What NVRTC makes of each kernel; nothing runs. A number of an architecture is that of "
    "instructions for each 16 bytes that a thread moves from or to global memory, where the kernel "
    "moves most: the innermost loops that have a quarter of its accesses of 16 bytes, or all of it "
    "before a grid barrier. Beside it registers, and spilled bytes where there are some. An H200 "
    "issues about 125 instructions in the time in which its memory moves 16 bytes, a B200 80, an "
    "A100 180. Of sm_90 also: MUFU instructions, divisions, and F2F conversions, in all."
)


@dataclass(frozen=True, slots=True)
class Hot:
    """The part of a kernel that moves most: its instructions, and its accesses of 16 bytes."""

    instructions: int
    accesses: float

    @property
    def per_access(self) -> float:
        return self.instructions / self.accesses if self.accesses else float(self.instructions)


def hot(code: sass.Sass) -> Hot:
    """The innermost loops that have a quarter of the accesses of 16 bytes, since they go round more
    often than what is around them, each with what it has inside; or all that is before a grid
    barrier. Narrower accesses are of statistics and of parts of totals.
    """
    places = {*range(_end(code))}
    loops = [{*loop} for loop in _loops(code)]
    while True:
        inside = [a for a in loops if a < places and _vectors(code, a)]
        outer = [a for a in inside if not any(a < b for b in inside)]
        if not outer or 4 * sum(_vectors(code, a) for a in outer) < _vectors(code, places):
            break
        places = set().union(*outer)
        loops = [a for a in inside if a not in outer]
    places -= _slow_paths(code)
    return Hot(len(places), _moved(code, places))


def _moved(code: sass.Sass, places: set[int]) -> float:
    """What moves from or to global memory, in accesses of 16 bytes."""
    return sum(_widths(code, places)) / 128


def _vectors(code: sass.Sass, places: set[int]) -> int:
    """Accesses of 16 bytes or more to global memory."""
    return sum(width >= 128 for width in _widths(code, places))


def _widths(code: sass.Sass, places: set[int]) -> list[int]:
    """Bits of each access to global memory, asynchronous copies among them."""
    found = [code.opcodes[k] for k in places]
    moving = ("LDG", "LD", "LDGSTS", "STG", "ST")
    return [sass.width(op) for op in found if sass.base(op) in moving]


def _end(code: sass.Sass) -> int:
    """Behind it are a grid barrier (whose word is added to) and what follows it, subroutines, and
    the loop that a kernel ends with.
    """
    adding = ("ATOM.E.ADD.STRONG.GPU", "ATOMG.E.ADD.STRONG.GPU")
    arriving = (k for k, op in enumerate(code.opcodes) if op.startswith(adding))
    return min(code.subroutines, next(arriving, code.subroutines))


def _loops(code: sass.Sass) -> list[range]:
    end = _end(code)
    found = ((code.target(k), k) for k in range(end) if code.opcodes[k].startswith("BRA"))
    return sorted(
        {range(t, k + 1) for t, k in found if t is not None and t < k},
        key=lambda loop: (loop.start, loop.stop),
    )


def _slow_paths(code: sass.Sass) -> set[int]:
    found: set[int] = set()
    for k, op in enumerate(code.opcodes):
        target = code.target(k) if op.startswith("BRA") else None
        if target is not None and k < target <= k + _SLOW_PATH:
            inside = range(k + 1, target)
            if any(code.opcodes[i].startswith("CALL") for i in inside):
                found.update(inside)
    return found


def _sources() -> Iterator[tuple[str, Plans]]:
    for workload in WORKLOADS:
        name = f"workload {workload.name}"
        yield name, lambda w=workload: [f.plan for f in planned(w, "full", "cuda").fusions]  # type: ignore[misc]
    yield from programs()


def _figures(kernel: Kernel, device: DeviceInfo) -> tuple[sass.Sass, Resources]:
    cubin = compile_cubin([kernel], device.arch)
    return sass.disassemble(cubin.image)[kernel.name], cubin.resources[kernel.name]


def table(chosen: str = "") -> Table:
    rows: list[dict[str, str | int]] = []
    for name, plans in _sources():
        if chosen.lower() not in name.lower():
            continue
        found = plans()
        by_device = [
            [k.kernel for p in found for k in generate_kernels(p, d).values()] for d in DEVICES
        ]
        for n in range(max(map(len, by_device))):
            row: dict[str, str | int] = {"kernel": f"{name}{f' ({n + 1})' if n else ''}"}
            for device, kernels in zip(DEVICES, by_device, strict=True):
                if n >= len(kernels):
                    continue
                code, resources = _figures(kernels[n], device)
                spilled = resources.spill_store_bytes + resources.spill_load_bytes
                more = f", {spilled} B spilled" if spilled else ""
                row[device.arch] = f"{hot(code).per_access:.1f} ({resources.registers}{more})"
                if device is H200:
                    row["threads"] = kernels[n].block[0]
                    row["mufu"] = code.count("MUFU")
                    row["divisions"] = code.count("FCHK")
                    row["f2f"] = code.count("F2F")
            rows.append(row)
    columns = [Column("kernel", "kernel"), *(Column(d.arch, d.arch) for d in DEVICES)]
    columns += [Column(k, k) for k in ("threads", "mufu", "divisions", "f2f")]
    return Table("Machine code", _NOTE, tuple(columns), tuple(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="", help="only rows whose names contain this")
    parser.add_argument("--out", action="store_true", help=f"write {OUT.name}, too")
    chosen = parser.parse_args(arguments)
    text = table(chosen.filter).markdown()
    print(text)
    if chosen.out:
        OUT.write_text(re.sub(r"^## ", "# ", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
