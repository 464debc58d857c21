"""Compiling for the host: which compiler, what the cache survives, what errors say."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
import torch

from tests.runtime.hand_written import scale
from thunder_fuser.codegen import headers
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import options
from thunder_fuser.errors import FuserValueError, TargetError
from thunder_fuser.runtime.compilation.cache import Folder
from thunder_fuser.runtime.host import compiler
from thunder_fuser.runtime.host import library as host_library
from thunder_fuser.runtime.host.build import host_text
from thunder_fuser.runtime.host.target import HOST


@pytest.fixture(scope="module")
def runtime_library() -> Path:
    """The runtime, loaded: a process can only have one. Others, for sanitizers, may lie beside."""
    (launch,) = HOST.compile([scale()])
    runtime = launch.program.library._needs
    assert runtime is not None
    return runtime.path


@pytest.fixture
def cache(tmp_path: Path, runtime_library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without kernels, and a process that has loaded none."""
    forget_kernels(monkeypatch)
    folder = tmp_path / "cache"
    (folder / "host").mkdir(parents=True)
    shutil.copy(runtime_library, folder / "host")
    return folder


def forget_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has the runtime and no kernel yet."""
    runtimes = [(k, lib) for k, lib in host_library._libraries.items() if lib._needs is None]
    monkeypatch.setattr(host_library, "_libraries", WeakValueDictionary(runtimes))


def works(kernel: Kernel) -> bool:
    (launch,) = HOST.compile([kernel])
    x, y = torch.arange(10.0), torch.zeros(10)
    launch(x.data_ptr(), y.data_ptr(), 3.0, 10)
    return torch.equal(y, 3 * x)


@pytest.mark.parametrize("collectives", [False, True])
def test_a_program_has_the_body_of_a_kernel_once(collectives: bool) -> None:
    kernel = replace(scale(), collectives=collectives)
    found = compiler.find_compiler()
    flags = [flag for flag in found.flags if flag != "-shared"]
    ended = found.run(
        [*flags, "-O2", "-S", f"-I{headers.template_dir()}", "-x", "c++", "-o", "-", "-"],
        given=host_text([kernel]),
    )
    assert ended.returncode == 0, ended.stderr[:2000]
    functions = re.findall(r"^(\S*scale\w+):.*?^\s*\.cfi_endproc", ended.stdout, re.S | re.M)
    assert len(functions) == 1, functions


def libraries(cache: Path) -> list[Path]:
    return sorted((cache / "host").iterdir())


def unique(name: str) -> Kernel:
    """A kernel that no other test has compiled."""
    return scale(f"scale_{name}")


# --- The cache --------------------------------------------------------------------------------


def test_a_second_process_compiles_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with options(cache_dir=str(cache)):
        assert works(unique("reused"))
        before = {path: path.stat().st_ino for path in libraries(cache)}
        assert [path.name.partition("-")[0] for path in before] == ["runtime", "scale_reused"]
        forbid_compiling(monkeypatch)
        assert works(unique("reused"))
    assert {path: path.stat().st_ino for path in libraries(cache)} == before


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_kernels(monkeypatch)
    monkeypatch.setattr(compiler.Compiler, "run", None)


DAMAGES = (
    *("truncated", "empty", "garbage", "a link to itself", "a pipe", "a folder"),
    *("not a library", "of another kernel"),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_rebuilt(
    cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    kernel = unique("damaged_" + damage.replace(" ", "_"))
    keys: dict[str, str] = {}
    publish = Folder.publish

    def noted(folder: Folder, finished: Path, name: str, key: str) -> Path:
        keys[name] = key
        return publish(folder, finished, name, key)

    monkeypatch.setattr(Folder, "publish", noted)
    with options(cache_dir=str(cache)):
        if damage == "of another kernel":
            assert works(unique("other"))
        assert works(kernel)
        (path,) = (path for path in libraries(cache) if path.name.startswith(kernel.name))
        content = path.read_bytes()
        path.unlink()  # never change what is loaded
        if damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "empty":
            path.touch()
        elif damage == "garbage":
            path.write_bytes(content[:1000] + b"?" * 100 + content[1100:])
        elif damage == "a link to itself":
            path.symlink_to(path)
        elif damage == "a pipe":
            os.mkfifo(path)
        elif damage == "a folder":
            (path / "with" / "something").mkdir(parents=True)
        elif damage == "of another kernel":
            (other,) = (path for path in libraries(cache) if "scale_other" in path.name)
            shutil.copy(other, path)
        else:
            Folder(path.parent).keep(b"\x7fELF and nothing more", path.name, keys[path.name])
        forget_kernels(monkeypatch)
        assert works(kernel)
        forbid_compiling(monkeypatch)
        assert works(kernel)


def test_a_folder_that_cannot_be_written_is_done_without(cache: Path) -> None:
    file = cache / "file"
    file.write_text("a file where the folder should be")
    with options(cache_dir=str(file)), pytest.warns(RuntimeWarning, match="its folder is unusable"):
        assert works(unique("no_folder"))


def test_loaded_kernels_survive_the_removal_of_the_cache(cache: Path) -> None:
    with options(cache_dir=str(cache)):
        assert works(unique("removed_a"))
        shutil.rmtree(cache)
        assert works(unique("removed_a"))
        assert works(unique("removed_b"))


def test_entries_depend_on_source_templates_flags_and_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> set[str]:
        return {path.name for path in libraries(cache) if path.name.startswith("scale_key")}

    kernel = unique("key")
    with options(cache_dir=str(cache)):
        assert works(kernel)
        assert len(names()) == 1
        HOST.compile([kernel], sanitizer="undefined")
        assert len(names()) == 2
        monkeypatch.setattr(headers, "fingerprint", lambda: "other")
        assert works(kernel)
        assert len(names()) == 3
    assert not [path for path in libraries(cache) if path.name.startswith(".")]  # nothing left over


PROCESS = """
import sys, torch
from tests.runtime.hand_written import scale
from thunder_fuser.runtime.host.target import HOST
print("ready", flush=True)
sys.stdin.readline()
for n in range(3):
    (launch,) = HOST.compile([scale(f"scale_shared_{n}")])
    x, y = torch.arange(100.0), torch.zeros(100)
    launch(x.data_ptr(), y.data_ptr(), 2.0, 100)
    assert torch.equal(y, 2 * x)
print("done", flush=True)
"""


def start_process(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        env={**os.environ, "THUNDER_FUSER_CACHE_DIR": str(cache)},
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_compile_the_same_kernels_at_once(cache: Path) -> None:
    shutil.rmtree(cache)
    processes = [start_process(cache) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert output == "done\n"
        assert process.returncode == 0
    names = [path.name.rpartition("-")[0] for path in libraries(cache)]
    assert names == ["runtime", "scale_shared_0", "scale_shared_1", "scale_shared_2"]


def test_a_damaged_runtime_is_rebuilt(cache: Path) -> None:
    with options(cache_dir=str(cache)):
        assert works(unique("damaged_runtime"))
        (runtime,) = (path for path in libraries(cache) if path.name.startswith("runtime"))
        content = runtime.read_bytes()
        runtime.write_bytes(content[:3000])
        output, _ = start_process(cache).communicate("go\n", timeout=120)
        assert output == "ready\ndone\n"
        assert runtime.read_bytes() == content


def test_a_kernel_that_includes_nothing() -> None:
    assert works(scale("scale_alone", headers=()))


def test_a_long_name_fits_into_a_file_name() -> None:
    assert works(scale("scale_" + "and_again_" * 40))


# --- Compilers --------------------------------------------------------------------------------


@pytest.fixture
def fake_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, for scripts that answer --version; no wheel, no $CXX."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_without_any_compiler_the_error_names_all_that_were_tried(fake_compilers: Path) -> None:
    with pytest.raises(TargetError) as caught:
        HOST.compile([unique("homeless")])
    message = str(caught.value)
    assert "g++ was not found; clang++ was not found" in message
    assert "apt install g++" in message
    assert "pip install ziglang" in message
    assert "THUNDER_FUSER_CXX" in message


def test_order_of_preference(fake_compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(fake_compilers / "clang++", "echo clang version 99")
    found = compiler.find_compiler()
    assert (found.command, found.family) == (("clang++",), "clang")
    # Each call looks at other files, so nothing that was remembered may answer.
    compiler._find.cache_clear()
    script(fake_compilers / "g++", "echo g++ 99")
    found = compiler.find_compiler()
    assert (found.command, found.family) == (("g++",), "gcc")
    monkeypatch.setenv("CXX", "clang++ --extra")
    assert compiler.find_compiler().command == ("clang++", "--extra")
    with options(cxx="g++ -O1"):
        assert compiler.find_compiler().command == ("g++", "-O1")


def test_the_wheel_is_the_last_resort(
    fake_compilers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(fake_compilers / "python", "echo clang version 99 from a wheel")
    monkeypatch.setattr(compiler.sys, "executable", str(fake_compilers / "python"))
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: name == "ziglang")
    found = compiler.find_compiler()
    assert found.command[1:] == ("-m", "ziglang", "c++")
    assert found.family == "zig"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("/nowhere/g++", r"/nowhere/g\+\+ was not found; correct \$CXX"),
        ("broken", r"broken --version fails with status 3; correct \$CXX"),
        ("/etc/passwd", r"/etc/passwd is no program that may be run; correct \$CXX"),
        ("''", r"an empty name was not found; correct \$CXX"),
    ],
)
def test_a_compiler_that_was_asked_for_is_not_replaced(
    fake_compilers: Path, monkeypatch: pytest.MonkeyPatch, setting: str, message: str
) -> None:
    script(fake_compilers / "g++", "echo g++ 99")
    script(fake_compilers / "broken", "exit 3")
    monkeypatch.setenv("CXX", setting)
    with pytest.raises(TargetError, match=message):
        compiler.find_compiler()


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("true", "writes no library"),
        ("with-fsyntax-only", "writes no library"),
        ("links-nothing", "makes a library that cannot be loaded: .*file too short"),
        ('"g++', r"""\$CXX is '"g\+\+', which is no command \(No closing quotation\)"""),
    ],
)
def test_a_compiler_that_makes_no_library_is_named(
    fake_compilers: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    problem: str,
) -> None:
    script(fake_compilers / "true", "echo true 9.1")
    script(fake_compilers / "with-fsyntax-only", "[ $1 = --version ] && echo g++ 99; exit 0")
    # It finds where to write, and leaves an ELF header there.
    wrote = 'while [ "$1" != -o ]; do shift; done; printf "\\177ELF" > "$2"'
    script(fake_compilers / "links-nothing", f"[ $1 = --version ] && echo g++ 99 || {{ {wrote}; }}")
    monkeypatch.setenv("CXX", setting)
    message = rf"no C\+\+ compiler for kernels on the CPU: .*{problem}.*; correct \$CXX"
    with (
        options(cache_dir=str(tmp_path / "cache")),
        pytest.raises(TargetError, match=message),
    ):
        HOST.compile([unique("unmade")])


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("-c", "makes a library that cannot be loaded"),
        ("-nonsense", "makes no library: .*-nonsense"),
        ("-nostdinc", r"makes no library: .*stdint\.h"),
        ("-Wl,--nonsense", "makes no library: .*--nonsense"),
    ],
)
def test_a_flag_that_spoils_every_library_is_no_fault_of_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, problem: str
) -> None:
    monkeypatch.setenv("CXX", f"g++ {flag}")
    with (
        options(cache_dir=str(tmp_path / "cache")),
        pytest.raises(TargetError, match=rf"g\+\+ {flag} {problem}.*; correct \$CXX"),
    ):
        HOST.compile([unique("spoilt")])


def test_a_blank_name_is_none(fake_compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(fake_compilers / "g++", "echo g++ 99")
    monkeypatch.setenv("CXX", " ")
    assert compiler.find_compiler().command == ("g++",)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_a_c_compiler_is_told_to_link_what_cpp_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "gcc")
    assert works(unique("by_gcc"))


@pytest.mark.parametrize("name", ["gcc", "cc", "clang", "x86_64-linux-gnu-gcc-12", "ccache gcc"])
def test_c_compilers_are_known_by_their_names(name: str) -> None:
    def libraries_of(command: str) -> tuple[str, ...]:
        return compiler.Compiler(tuple(command.split()), "gcc", "").libraries

    assert libraries_of(name) == ("-lstdc++",)
    cpp = name.replace("gcc", "g++").replace("clang", "clang++")
    assert libraries_of("c++" if name == "cc" else cpp) == ()


# --- Templates and sources --------------------------------------------------------------------


def test_templates_are_found_and_fingerprinted() -> None:
    names = headers.template_names()
    assert {"prelude.cuh", "math.cuh", "host/abi.h", "host/worker.cpp"} <= set(names)
    assert headers.read("prelude.cuh") == (headers.template_dir() / "prelude.cuh").read_text()
    assert len(headers.fingerprint()) == 64
    with pytest.raises(FuserValueError, match=r"no file 'nothing.cuh'; it has .*prelude.cuh"):
        headers.read("nothing.cuh")


@pytest.mark.parametrize("place", ["beside the package", "inside the package"])
def test_templates_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path, place: str) -> None:
    package = tmp_path / "thunder_fuser"
    shutil.copytree(Path(compiler.__file__).parents[2], package)
    folder = (package if place == "inside the package" else tmp_path) / "csrc_templates"
    shutil.copytree(headers.template_dir(), folder)
    code = "from thunder_fuser.codegen import headers; print(headers.template_dir())"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(answer.stdout.strip()).samefile(folder)
