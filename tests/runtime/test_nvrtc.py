"""NVRTC and its cache: machine code, resources and errors, on a machine without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.hand_written import F32_IN, F32_OUT, kernel, make_read_only, scale
from tests.tools import sass
from thunder_fuser.config import options
from thunder_fuser.errors import CompileError, TargetError
from thunder_fuser.runtime.cuda import nvrtc as cuda_nvrtc
from thunder_fuser.runtime.cuda.nvrtc import (
    Resources,
    compile_cubin,
    nearest_arch,
    parse_resources,
    with_room,
)

pytestmark = pytest.mark.nvrtc

ARCHS = ("sm_80", "sm_90", "sm_100")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """An empty cache of the test's own; the folder in which entries appear."""
    with options(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "cuda"


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.fixture
def no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, whatever is not in the cache is an error."""

    def fail(*_: object) -> None:
        raise AssertionError("NVRTC was called")

    monkeypatch.setattr(cuda_nvrtc, "_run_nvrtc", fail)


@pytest.mark.parametrize("arch", ARCHS)
def test_one_program_holds_all_its_kernels(arch: str, cache: Path) -> None:
    kernels = [scale("first"), scale("second", shared_bytes=64), scale("third")]
    cubin = compile_cubin(kernels, arch)
    assert cubin.arch == arch
    assert cubin.image[:4] == b"\x7fELF"
    assert list(cubin.resources) == ["first", "second", "third"]
    assert all(0 < found.registers <= 64 for found in cubin.resources.values())
    assert not any(found.spills for found in cubin.resources.values())


def test_resources_are_those_of_each_kernel(cache: Path) -> None:
    live = "\n".join(f"  float v{i} = x[{i} * n];" for i in range(64))
    live += "\n  __syncthreads();\n" + "\n".join(f"  y[{i} * n] = a * v{i};" for i in range(64))
    cubin = compile_cubin(
        [
            # 2 blocks of 1024 threads leave 32 registers for more than 64 values.
            kernel("crowded", live, bounds="__launch_bounds__(1024, 2)"),
            kernel("roomy", live),
            kernel("shared", "  __shared__ float s[100];\n  s[n] = a;\n  y[0] = s[n + 1];"),
            kernel("array", "  int c[64] = {};\n  for (int i = 0; i < n; ++i) ++c[(int)x[i] & 63];"
                   "\n  y[0] = c[n & 63];"),
        ],
        "sm_90",
    )  # fmt: skip
    found = cubin.resources
    assert found["crowded"].registers == 32
    assert found["crowded"].spills
    assert found["crowded"].spill_store_bytes > 0
    assert found["roomy"].registers > 64
    assert not found["roomy"].spills
    assert found["shared"].shared_bytes == 400
    assert (found["array"].stack_bytes, found["array"].spills) == (256, False)


def test_only_a_kernel_that_spills_gets_all_registers() -> None:
    """One that does not keeps its blocks a multiprocessor, though they are one program."""
    bounds = "__launch_bounds__(128)"
    found = [kernel(name, "  y[n] = a * x[n];", bounds=bounds) for name in ("spilling", "other")]
    of_each = dict.fromkeys(("spilling", "other"), Resources(40, 0, 0, 0, 0))
    of_each["spilling"] = replace(of_each["spilling"], spill_store_bytes=4)
    spilling, other = with_room(found, of_each)
    assert "__launch_bounds__(128, 1)" in spilling.source
    assert spilling.source.replace("(128, 1)", "(128)") == found[0].source
    assert other == found[1]


@pytest.mark.parametrize(("values", "registers"), [(16, 32), (40, 64)])
def test_occupancy_is_asked_for_and_not_spilled_for(
    values: int, registers: int, cache: Path
) -> None:
    """Two blocks of 1,024 threads have 32 registers for each: enough, or too few."""
    live = "\n".join(f"  float v{i} = x[{i} * n];" for i in range(values))
    live += "\n  __syncthreads();\n"
    live += "\n".join(f"  y[{i} * n] = a * v{i};" for i in range(values))
    plain = kernel("asking", live, bounds="__launch_bounds__(1024)")
    asking = replace(plain, source=plain.source.replace("(1024)", "(1024, 2)"), min_blocks_hint=2)
    found = compile_cubin([asking], "sm_90").resources["asking"]
    if registers == 32:
        assert found.registers <= 32
    else:
        assert found == compile_cubin([plain], "sm_90").resources["asking"]
    assert not found.spills


def test_nvrtc_does_not_answer_from_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has there it gives without ptxas' log, and resources would be unknown."""
    given: list[list[bytes]] = []
    api = cuda_nvrtc.nvrtc()
    compiles = api.nvrtcCompileProgram

    def compiled(program: Any, count: int, flags: list[bytes]) -> Any:
        given.append(flags)
        return compiles(program, count, flags)

    cuda_nvrtc._without_cache.cache_clear()
    monkeypatch.setattr(api, "nvrtcCompileProgram", compiled)
    assert cuda_nvrtc._without_cache() in ((), ("--no-cache",))
    assert given == [[b"--no-cache"]]
    refused = (api.nvrtcResult.NVRTC_ERROR_INVALID_OPTION,)
    cuda_nvrtc._without_cache.cache_clear()
    monkeypatch.setattr(api, "nvrtcCompileProgram", lambda *_: refused)
    assert cuda_nvrtc._without_cache() == ()
    cuda_nvrtc._without_cache.cache_clear()


@pytest.mark.gpu
def test_resources_are_known_in_a_new_cache_folder(tmp_path: Path) -> None:
    """NVRTC has a cache beside the driver's, which no option of ours moves."""
    for folder in ("one", "two"):
        with options(cache_dir=str(tmp_path / folder)):
            assert set(compile_cubin([scale()], "sm_90").resources) == {scale().name}


def test_what_ptxas_reports_is_read() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_80'
ptxas info    : Function properties for k2
ptxas         .     400 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 256 bytes smem, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
"""
    assert parse_resources(log) == {
        "k2": Resources(32, 400, 24, 28, 256),
        "k": Resources(8, 0, 0, 0, 0),
    }


def test_a_second_compilation_is_a_cache_hit(cache: Path, request: pytest.FixtureRequest) -> None:
    first = compile_cubin([scale()], "sm_90")
    request.getfixturevalue("no_nvrtc")
    assert compile_cubin([scale()], "sm_90") == first
    for changed in ([scale("renamed")], [scale(), scale("another")]):
        with pytest.raises(AssertionError, match="NVRTC was called"):
            compile_cubin(changed, "sm_90")
    with pytest.raises(AssertionError, match="NVRTC was called"):
        compile_cubin([scale()], "sm_80")


def test_a_folder_that_is_only_read_serves_its_entries(
    cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    first = compile_cubin([scale()], "sm_90")
    before = entries(cache)
    make_read_only(cache, monkeypatch)
    other = compile_cubin([scale("unread")], "sm_90")
    request.getfixturevalue("no_nvrtc")
    assert compile_cubin([scale()], "sm_90") == first
    assert compile_cubin([scale("unread")], "sm_90") == other
    assert entries(cache) == before


@pytest.mark.filterwarnings("ignore:the cache of compiled kernels is not used:RuntimeWarning")
def test_entries_that_others_could_have_written_are_not_read(
    cache: Path, no_nvrtc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cuda_nvrtc, "_run_nvrtc", lambda *_: (b"\x7fELF", ""))
        with pytest.raises(KeyError):  # no such kernel in what is in the cache now
            compile_cubin([scale()], "sm_90")
    with pytest.raises(KeyError):
        compile_cubin([scale()], "sm_90")
    (entry,) = entries(cache)
    for path, mode in ((entry, 0o602), (cache, 0o777), (cache.parent, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(AssertionError, match="NVRTC was called"):
            compile_cubin([scale()], "sm_90")
        path.chmod(before)


def test_a_changed_header_is_a_miss(
    cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    headers = cuda_nvrtc.device_headers()
    compile_cubin([scale()], "sm_90")
    monkeypatch.setattr(cuda_nvrtc, "device_headers", lambda: headers | {"new.cuh": ""})
    request.getfixturevalue("no_nvrtc")
    with pytest.raises(AssertionError, match="NVRTC was called"):
        compile_cubin([scale()], "sm_90")


@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
def test_entries_are_what_nvidias_tools_read(cache: Path) -> None:
    image = compile_cubin([scale()], "sm_90").image
    (entry,) = entries(cache)
    assert sass.disassemble(entry.read_bytes()) == sass.disassemble(image)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "remove", "swap"])
def test_a_damaged_entry_is_compiled_again(
    cache: Path, damage: str, request: pytest.FixtureRequest
) -> None:
    first = compile_cubin([scale()], "sm_90")
    (path,) = entries(cache)
    content = path.read_bytes()
    if damage == "swap":
        path.unlink()
        compile_cubin([scale("another")], "sm_90")
        (other,) = entries(cache)
        other.rename(path)
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    if damage == "remove":
        path.unlink()
    elif damage != "swap":
        path.write_bytes({"truncate": content[:middle], "flip": flipped, "empty": b""}[damage])
    assert compile_cubin([scale()], "sm_90") == first
    request.getfixturevalue("no_nvrtc")
    assert compile_cubin([scale()], "sm_90") == first


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with options(cache_dir=str(tmp_path / "file")):
        assert compile_cubin([scale()], "sm_90").resources["scale"].registers > 0


def test_processes_share_a_cache(cache: Path) -> None:
    script = (
        "from tests.runtime.hand_written import scale\n"
        "from thunder_fuser.runtime.cuda.nvrtc import compile_cubin\n"
        "import hashlib\n"
        "for n in range(8):\n"
        "    image = compile_cubin([scale(f'k{n}')], 'sm_90').image\n"
        "    print(hashlib.sha256(image).hexdigest())\n"
    )
    environment = {"THUNDER_FUSER_CACHE_DIR": str(cache.parent)}
    running = [
        subprocess.Popen(
            ["env", *(f"{k}={v}" for k, v in environment.items()), sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == 8
    assert len(entries(cache)) == 8  # and nothing left over


def test_a_rejected_kernel_comes_with_source_line_and_log(cache: Path, tmp_path: Path) -> None:
    bad = kernel("bad", "  y[0] = undeclared;")
    with options(dump_dir=str(tmp_path / "dump")), pytest.raises(CompileError) as caught:
        compile_cubin([scale(), bad], "sm_90")
    error = caught.value
    assert "rejected scale, bad for sm_90" in str(error)
    assert 'identifier "undeclared" is undefined' in str(error)
    assert error.source is not None
    assert error.source.parent == tmp_path / "dump"
    line = int(str(error).split("kernels.cu(")[1].split(")")[0])
    assert "undeclared" in error.source.read_text().splitlines()[line - 1]
    assert "1 error detected" in error.log
    assert entries(cache) == []


def test_a_newer_device_gets_the_nearest_older_code(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_103")
    monkeypatch.setattr(cuda_nvrtc, "supported_archs", lambda: known)
    asked = ("sm_75", "sm_80", "sm_87", "sm_90", "sm_90a", "sm_100", "sm_101", "sm_109", "sm_100f")
    given = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_100", "sm_103", "sm_100f")
    assert tuple(map(nearest_arch, asked)) == given
    for unknown in ("sm_70", "sm_110", "sm_120"):
        with pytest.raises(TargetError, match=f"cannot compile for {unknown}, only for sm_75"):
            nearest_arch(unknown)


def test_an_absent_nvrtc_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc as bindings

    def absent() -> None:
        raise RuntimeError("libnvrtc.so.13 not found")

    cuda_nvrtc.nvrtc.cache_clear()
    monkeypatch.setattr(bindings, "nvrtcVersion", absent)
    with pytest.raises(
        TargetError, match=r"libnvrtc\.so\.13 not found.*pip install nvidia-cuda-nv"
    ):
        cuda_nvrtc.nvrtc()


@pytest.mark.skipif(bool(sass.SKIP_REASON), reason=sass.SKIP_REASON)
@pytest.mark.parametrize("arch", ARCHS)
def test_the_cubin_holds_the_code_of_every_kernel(arch: str, cache: Path) -> None:
    copies = kernel("copies", "  y[threadIdx.x] = x[threadIdx.x];", (F32_IN, F32_OUT))
    code = sass.disassemble(compile_cubin([scale(), copies], arch).image)
    assert set(code) == {"scale", "copies"}
    assert (code["copies"].load_bits, code["copies"].store_bits) == ({32: 1}, {32: 1})
