"""The instructions that the time model counts, against those of machine code.

What is compared is a thread's hot loop (what is in no loop, where a kernel has none): instructions
for each byte that it loads and stores in vectors, since a compiler may write iterations out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import pytest

from tests.support.shares import each_architecture
from tests.tools import sass, sass_loops
from tests.zoo.issue_2473 import full_plan
from tests.zoo.norms import NORMS
from tests.zoo.reductions import REDUCTIONS
from tests.zoo.workloads import WORKLOADS
from thunder_fuser.codegen.cuda import generate
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin
from thunder_fuser.templates.choose import schedule_segment
from thunder_fuser.templates.lower import lower
from thunder_fuser.time_model.instruction_mix import instruction_regions
from thunder_fuser.time_model.instruction_values import Region
from thunder_fuser.time_model.registers import registers_of

pytestmark = [
    pytest.mark.nvrtc,
    pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON),
]
TOLERANCE = 0.15
_MOVED = "loads and uses under tests of their own: registers are moved between"
_OFFSETS = "addresses of steps that are written out together differ by constants"
_CONVERTED = "the second pass converts again what registers have no room for beside the next row"
_COMPUTED = "the second pass computes again what registers have no room for"
_LOADED = "what registers keep of all rows is loaded with each"
EXCEPTIONS = {
    ("full_sum", "sm_80"): _MOVED,
    ("full_sum", "sm_100"): _MOVED,
    ("issue_2473", "sm_80"): _LOADED,
    ("loss", "sm_80"): _OFFSETS,
    ("loss", "sm_90"): _OFFSETS,
    ("rms_norm_backward", "sm_80"): _CONVERTED,
    ("rms_norm_backward", "sm_90"): _CONVERTED,
    ("wide layer_norm_backward", "sm_90"): _COMPUTED,
    ("wide layer_norm_backward", "sm_100"): _COMPUTED,
}
"""Kernels that are further off, and why."""


def written(regions: Sequence[Region]) -> list[Region]:
    """As machine code has them: what only some warps do is written where all are."""
    found = {r: Region(r.parent, r.is_loop, r.times) for r in regions if r.is_loop or not r.parent}
    for region in regions:
        around = next(r for r in region.line if r in found)
        found[around].mix.update(region.mix)
        found[around].accesses.extend(region.accesses)
    return list(found.values())


def _vector_bytes(region: Region) -> int:
    return sum(a.bytes for a in region.accesses if a.bytes >= sass_loops.VECTOR)


def _loops(region: Region) -> int:
    """How many loops it is in."""
    return sum(r.is_loop for r in region.line)


def _heat(region: Region) -> int:
    return _vector_bytes(region) * sass_loops.INNER ** _loops(region)


def _programs() -> dict[str, Fusion]:
    """The workloads, and the reductions in the sizes that a GPU is measured with, by name."""
    left_out = {"relu_slices", "constant_across_a_cut", "sin_cos"}  # Tiny ones, and slow paths.
    found = {w.name: w.fusion(w.full) for w in WORKLOADS if w.name not in left_out}
    for norm in NORMS:
        columns = 32768 if "softmax" in norm.name else 4096
        found[f"norm {norm.name}"] = norm.definition(4096, columns, DataType.BFloat16).fusion
    for r in REDUCTIONS:
        found[r.name] = r.definition(*r.full, DataType.BFloat16).fusion
        if r.name == "layer_norm_backward":
            # Asynchronous copies, where registers have no room for the next row.
            found["wide layer_norm_backward"] = r.definition(8192, 8192, DataType.Float).fusion
    return {**found, "issue_2473": full_plan().fusion}


def _kernels(device: DeviceInfo) -> Iterator[tuple[str, KernelIR]]:
    for name, fusion in _programs().items():
        for segment in CompiledFusion(fusion).plan().segments:
            if segment.kernels:
                yield name, lower(schedule_segment(segment, device), segment.body.updates)


@each_architecture()
def test_instructions_of_hot_loops_are_those_of_machine_code(device: DeviceInfo) -> None:
    found = [(name, kernel, generate(kernel).kernel) for name, kernel in _kernels(device)]
    texts = {text.name: text for _, _, text in found}
    cubin = compile_cubin(list(texts.values()), device.arch)
    code = sass.disassemble(cubin.image)
    off = {}
    for name, kernel, text in found:
        loop = max(written(instruction_regions(kernel, device.arch)), key=_heat)
        made = sass_loops.hot(code[text.name], _loops(loop))
        counted = loop.instructions / _vector_bytes(loop)
        error = counted / (made.instructions / made.bytes) - 1
        if abs(error) > TOLERANCE and (name, device.arch) not in EXCEPTIONS:
            off[name] = f"{error:+.0%}: {dict(loop.mix)}, not {dict(made.pipes)}"
    assert not off
    registers = [
        abs(registers_of(kernel, device) / cubin.resources[text.name].registers - 1)
        for _, kernel, text in found
    ]
    assert statistics.median(registers) < TOLERANCE
