"""Programs that are compiled ahead, together: the cache has each of them, as if alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.runtime.hand_written import kernel, scale
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import options
from thunder_fuser.errors import CompileError
from thunder_fuser.runtime.compilation import ahead
from thunder_fuser.runtime.compilation.ahead import compile_ahead
from thunder_fuser.runtime.cuda import nvrtc
from thunder_fuser.runtime.host import library
from thunder_fuser.runtime.host.target import HOST, HostLaunch

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    """An empty cache of the test's own."""
    with options(cache_dir=str(tmp_path / "cache"), dump_dir=str(tmp_path / "dump")):
        yield


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that compilers are given from here on, but for the host's runtime; on two cores."""
    texts: list[str] = []
    run, make = nvrtc._run_nvrtc, library._compiled

    def run_nvrtc(kernels: Sequence[Kernel], text: str, *rest: str) -> tuple[bytes, str]:
        texts.append(text)
        return run(kernels, text, *rest)  # type: ignore[arg-type]

    def compile_unit(unit: library.Unit, *rest: object) -> Path:
        texts.extend([unit.text] * (unit.needs is not None))
        return make(unit, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ahead, "_cores", lambda: 2)
    monkeypatch.setattr(nvrtc, "_run_nvrtc", run_nvrtc)
    monkeypatch.setattr(library, "_compiled", compile_unit)
    return texts


def programs() -> list[list[Kernel]]:
    found = [[scale(f"ahead_{n}")] for n in range(4)]
    return [*found, [scale("ahead_4"), kernel("ahead_5", "  y[0] = a * x[1];")]]


def run(launch: HostLaunch) -> torch.Tensor:
    x = torch.arange(100, dtype=torch.float32)
    y = torch.zeros_like(x)
    launch(x.data_ptr(), y.data_ptr(), 0.5, len(x))
    return y


def test_two_compilations_make_programs_that_are_found_one_by_one(compiled: list[str]) -> None:
    compile_ahead(programs(), CPU)
    assert len(compiled) == 2
    compile_ahead(programs(), CPU)
    for program in programs():
        for launch in HOST.compile(program):
            expected = torch.arange(100) * 0.5
            if launch.kernel.name == "ahead_5":
                expected = torch.tensor([0.5] + [0.0] * 99)
            assert torch.equal(run(launch), expected)
    assert len(compiled) == 2  # nothing since


def test_machine_code_for_gpus_is_that_of_each_program_alone(
    compiled: list[str], tmp_path: Path
) -> None:
    found = programs()
    with options(cuda_arch="sm_90"):
        compile_ahead(found, CUDA)
    assert len(compiled) == 2
    together = [nvrtc.compile_cubin(program, "sm_90") for program in found]
    assert len(compiled) == 2
    assert [list(cubin.resources) for cubin in together] == [[k.name for k in p] for p in found]
    with options(cache_dir=str(tmp_path / "another")):
        alone = [nvrtc.compile_cubin(program, "sm_90") for program in found]
    assert [dict(c.resources) for c in together] == [dict(c.resources) for c in alone]
    nvrtc.compile_cubin(found[0], "sm_80")
    assert len(compiled) == 2 + len(found) + 1  # another device's


def test_a_kernel_that_needs_room_is_compiled_with_its_own_flags(compiled: list[str]) -> None:
    live = "\n".join(f"  float v{i} = x[{i} * n];" for i in range(64))
    live += "\n  __syncthreads();\n" + "\n".join(f"  y[{i} * n] = a * v{i};" for i in range(64))
    crowded = kernel("crowded", live, bounds="__launch_bounds__(1024, 2)")
    with options(cuda_arch="sm_90"):
        compile_ahead([[crowded], [scale("beside")]], CUDA)
    assert len(compiled) == 1
    nvrtc.compile_cubin([scale("beside")], "sm_90")
    assert len(compiled) == 1
    nvrtc.compile_cubin([crowded], "sm_90")
    assert len(compiled) == 2  # there are no launch bounds with more room than it must have


@pytest.mark.parametrize("device", [CPU, CUDA], ids=["host", "cuda"])
def test_what_is_rejected_is_so_at_its_own_compilation(
    device: torch.device, compiled: list[str]
) -> None:
    bad = [kernel("ahead_bad", "  y[0] = undeclared;")]
    good = [scale("ahead_good")]
    compile_ahead([good, bad], device)
    assert len(compiled) == 1
    if device is CPU:
        assert torch.equal(run(HOST.compile(good)[0]), torch.arange(100) * 0.5)
        with pytest.raises(CompileError, match="rejected ahead_bad"):
            HOST.compile(bad)
    else:
        assert nvrtc.compile_cubin(good, "sm_90").resources.keys() == {"ahead_good"}
        with pytest.raises(CompileError, match="rejected ahead_bad"):
            nvrtc.compile_cubin(bad, "sm_90")
    assert len(compiled) == 3


def test_programs_that_share_a_name_do_not_meet(compiled: list[str]) -> None:
    other = kernel("ahead_0", "  y[0] = x[99];")
    compile_ahead([*programs(), [other]], CPU)
    assert len(compiled) == 2
    (first,), (second,) = HOST.compile(programs()[0]), HOST.compile([other])
    assert len(compiled) == 3
    assert run(first)[1] == 0.5
    assert run(second)[:2].tolist() == [99.0, 0.0]


def test_one_program_is_left_to_its_call(compiled: list[str]) -> None:
    compile_ahead([[scale("ahead_alone")]], CPU)
    compile_ahead([], CPU)
    assert compiled == []
