"""What a page says of each kernel: texts of every stage, and what a compiler counted."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.frontends.thunder.programs import jit
from tests.tools.sass import SKIP_REASON, disassemble
from thunder_fuser.compile import generate_kernels
from thunder_fuser.device_table import H200
from thunder_fuser.frontends.thunder import fusions
from thunder_fuser.inspect import Report, report
from thunder_fuser.inspect.collect import details, sass
from thunder_fuser.inspect.data.program import Program
from thunder_fuser.runtime.cuda.nvrtc import compile_cubin


@pytest.fixture(scope="module")
def small() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ w, -1) * x

    compiled = jit(function)
    compiled(*(torch.randn(16, 16, requires_grad=True) for _ in range(2)))
    return report(compiled).program


@pytest.mark.nvrtc
def test_resources_are_what_the_compiler_counts(compiled_llama: object, llama: Report) -> None:
    plans = {f.name: f.plan for f in fusions(compiled_llama)}
    found = [(d.names[0], k) for d in llama.program.details for k in d.kernels]
    assert len(found) > 8
    for name, kernel in found:
        generated = generate_kernels(plans[name], H200)[kernel.segment]
        counted = compile_cubin([generated.kernel], H200.arch).resources[kernel.name]
        assert kernel.registers == counted.registers
        assert kernel.spilled_bytes == counted.spill_store_bytes + counted.spill_load_bytes
        assert kernel.shared_bytes == counted.shared_bytes + generated.kernel.shared_bytes
        assert kernel.measured.endswith(H200.arch)
        # A multiprocessor has room for no more.
        held = kernel.resident * kernel.threads
        assert held * kernel.registers <= H200.registers_per_sm
        assert kernel.occupancy == held / H200.threads_per_sm <= 1


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)
def test_machine_code_is_that_of_the_kernel(small: Program) -> None:
    (detail, *_) = small.details
    codes = [text for title, text in detail.sections if title.startswith("machine code")]
    assert len(codes) == len(detail.kernels)
    for code in codes:
        assert "EXIT" in code
        assert "LDG" in code


@pytest.mark.nvrtc
@pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)
def test_a_listing_has_every_instruction() -> None:
    compiled = jit(lambda x: torch.softmax(x, -1))
    compiled(torch.randn(64, 256))
    (generated,) = generate_kernels(fusions(compiled)[0].plan, H200).values()
    image = compile_cubin([generated.kernel], H200.arch).image
    ((name, code),) = sass.disassembled(image).items()
    lines = [line.split() for line in sass.listing(code).splitlines() if not line.endswith(":")]
    opcodes = [words[2] if words[1].startswith("@") else words[1] for words in lines]
    assert tuple(opcodes) == disassemble(image)[name].opcodes


def test_without_a_compiler_registers_are_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise details.TargetError("no NVRTC")

    monkeypatch.setattr(details, "compile_cubin", none)
    compiled = jit(lambda x: torch.softmax(x, -1))
    compiled(torch.randn(64, 256))
    made = report(compiled)
    (kernel,) = made.program.details[0].kernels
    assert (kernel.measured, kernel.resident > 0, 16 <= kernel.registers <= 255) == ("", True, True)
    assert "Estimates for 1 of 1 kernels" in made._repr_html_()


def test_every_stage_can_be_read(small: Program) -> None:
    for detail in small.details:
        titles = [title.partition(",")[0] for title, _ in detail.sections]
        for stage in ("plan", "fusion", "schedule", "kernel IR", "source", "repro"):
            assert stage in titles
    for part in small.parts:
        assert part.stages
        # The last of them is the trace that runs.
        assert "fuser0" in small.parts[0].stages[-1][1]


def test_a_report_without_details_has_the_same_figures(small: Program) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ w, -1) * x

    compiled = jit(function)
    compiled(*(torch.randn(16, 16, requires_grad=True) for _ in range(2)))
    made = report(compiled, details=False).program
    assert (made.details, [p.stages for p in made.parts]) == ((), [()] * len(made.parts))
    assert [(s.key, s.bytes) for s in made.steps] == [(s.key, s.bytes) for s in small.steps]


def test_a_repro_runs(small: Program, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(dict(small.details[0].sections)["repro"])
    runpy.run_path(str(script))


def test_differences_say_each_change_once() -> None:
    lines = [f"line {k}" for k in range(9)]
    first, second = "\n".join(lines), "\n".join([*lines[:4], "another", *lines[5:]])
    texts = [("a", first), ("b", second), ("the same", second), ("c", "all is new")]
    assert list(details.differences(texts)) == [
        ("a", first),
        ("b (diff)", "@@ -4,3 +4,3 @@\n line 3\n-line 4\n+another\n line 5"),
        ("c", "all is new"),
    ]
