"""Where kernels go when the cache cannot have them: full disks, forks, killed processes."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from tests.runtime.hand_written import kernel, make_read_only, scale
from tests.support import forked
from thunder_fuser import cache_command
from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.config import options
from thunder_fuser.errors import CompileError, TargetError
from thunder_fuser.runtime.compilation import cache, failures, private
from thunder_fuser.runtime.compilation.ahead import compile_ahead
from thunder_fuser.runtime.compilation.cache import Folder
from thunder_fuser.runtime.host import compiler
from thunder_fuser.runtime.host import library as host_library
from thunder_fuser.runtime.host.target import HOST

ROOT = Path(__file__).resolve().parents[2]


def works(tried: Kernel) -> bool:
    (launch,) = HOST.compile([tried])
    x, y = torch.arange(10.0), torch.zeros(10)
    launch(x.data_ptr(), y.data_ptr(), 3.0, 10)
    return torch.equal(y, 3 * x)


@pytest.fixture(scope="module", autouse=True)
def runtime() -> None:
    assert works(scale())  # a process has one, which is loaded from the cache of the suite


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty cache; nobody has been warned."""
    host_library._warn.cache_clear()
    with options(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache" / "host"


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Places in which a compiler finds no room, though the system reports some; to be filled."""
    places: list[Path] = []
    run = compiler.Compiler.run

    def fail(
        self: compiler.Compiler, arguments: list[str], temporary: Path
    ) -> subprocess.CompletedProcess[str]:
        if not any(place in temporary.parents for place in places):
            return run(self, arguments, temporary)
        messages = (
            "fatal error: error writing to source.s: No space left on device\n"
            "collect2: error: ld returned 1 exit status"
        )
        return subprocess.CompletedProcess(arguments, 1, "", messages)

    monkeypatch.setattr(compiler.Compiler, "run", fail)
    return places


def test_a_full_disk_sends_the_compiler_elsewhere(folder: Path, full: list[Path]) -> None:
    full.append(folder)
    with pytest.warns(RuntimeWarning, match=f"lost when .* {folder}: No space left on device"):
        assert works(scale("scale_full"))
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_only_read_serves_its_entries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert works(scale("scale_read"))
    before = sorted(folder.iterdir())
    make_read_only(folder, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(compiler.Compiler, "run", None)
        assert works(scale("scale_read"))
    with pytest.warns(RuntimeWarning, match=f"lost when .* {folder}: Read-only file system"):
        assert works(scale("scale_unread"))
    compile_ahead([[scale("scale_ahead")], [scale("scale_too")]], torch.device("cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(compiler.Compiler, "run", None)
        assert works(scale("scale_unread"))
        assert works(scale("scale_ahead"))
    assert sorted(folder.iterdir()) == before
    assert "  host  only read: it cannot be written" in cache_command.info()


def test_where_every_place_is_full_all_are_named(folder: Path, full: list[Path]) -> None:
    full += [folder, *private.process_folders()]
    with pytest.raises(TargetError) as caught:
        HOST.compile([scale("scale_nowhere")])
    message = str(caught.value)
    assert all(f"{place}: No space left on device" in message for place in full)
    assert "Make room, or name another folder in THUNDER_FUSER_CACHE_DIR" in message


def test_a_function_runs_in_torch_where_no_place_is_left(folder: Path, full: list[Path]) -> None:
    full += [folder, *private.process_folders()]
    function = thunder.jit(lambda x: torch.sin(x) * 17 + 4, executors=[thunder_fuser.executor])
    x = torch.randn(7)
    with options(strict=False), pytest.warns(RuntimeWarning) as caught:
        results = [function(x) for _ in range(2)]
    assert all(torch.equal(y, torch.sin(x) * 17 + 4) for y in results)
    (warning,) = (str(w.message) for w in caught if "fuser0" in str(w.message))
    assert f"{folder}: No space left on device" in warning
    assert "bug" not in warning


def test_a_disk_without_a_free_byte_is_not_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def statvfs(path: Path) -> object:
        found = real(path)
        values = list(found)
        values[4] = 0 if folder in Path(path).parents else values[4]
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.warns(RuntimeWarning, match=f"{folder}: No space left on device"):
        assert works(scale("scale_no_byte"))


def test_what_must_not_be_started_from_a_folder_is_from_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ctypes.CDLL

    def refuse(path: str) -> ctypes.CDLL:
        if Path(path).is_symlink():
            return load(path)
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(host_library.ctypes, "CDLL", refuse)
    # Two: the loader takes libraries with one name for one.
    assert works(scale("scale_noexec_a"))
    assert works(scale("scale_noexec_b"))
    assert len(list(folder.iterdir())) == 2


def test_dropped_kernels_are_unloaded(folder: Path) -> None:
    def mapped() -> bool:
        return "scale_dropped" in Path("/proc/self/maps").read_text()

    (launch,) = HOST.compile([scale("scale_dropped")])
    assert mapped()
    del launch
    assert not mapped()
    assert works(scale("scale_dropped"))


# --- What killed processes leave ----------------------------------------------------------------


def test_workspaces_of_dead_processes_are_swept(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder = Folder(tmp_path)
    child = os.fork()
    if not child:
        with folder.workspace() as work:
            (work / "half").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (abandoned,) = tmp_path.iterdir()
    assert (abandoned / "half").exists()
    old, new = tmp_path / ".tmp-old.so", tmp_path / ".tmp-new.so"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    with folder.workspace() as used:
        folder.keep(b"content", "name", "key")
        assert sorted(tmp_path.iterdir()) == sorted([new, used, tmp_path / "name"])


def test_a_workspace_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may sweep between the making of a folder and its opening."""
    tmp_path.chmod(0o700)
    make, swept = tempfile.mkdtemp, []

    def mkdtemp(**words: Any) -> str:
        path = make(**words)
        if not swept:
            swept.append(path)
            private.sweep(tmp_path, "")
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with Folder(tmp_path).workspace() as work:
        assert [str(work)] != swept
        assert list(tmp_path.iterdir()) == [work]


def test_what_was_not_used_for_longest_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(cache, "CACHE_BYTES", 3500)
    folder = Folder(tmp_path)
    for age, name in enumerate(("new", "used", "old")):
        folder.keep(bytes(900), name, "key")
        os.utime(tmp_path / name, (time.time() - age - 1, time.time() - age - 1))
    assert folder.find("used", "key") == bytes(900)
    folder.keep(bytes(1600), "large", "key")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "used"]


def test_an_entry_larger_than_the_cache_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CACHE_BYTES", 1)
    for name in ("scale_large_a", "scale_large_b"):
        assert works(scale(name))
        (entry,) = folder.iterdir()
        assert entry.name.startswith(name)


def test_a_library_that_another_process_evicts_can_be_linked_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the time when a kernel's compilation finds it and that when the linker reads it."""
    run = compiler.Compiler.run
    runtime = host_library._runtimes[-1].path

    def evict_and_run(
        self: compiler.Compiler, arguments: list[str], temporary: Path
    ) -> subprocess.CompletedProcess[str]:
        assert str(runtime) not in arguments
        for path in folder.glob("*.so"):
            path.unlink()
        return run(self, arguments, temporary)

    monkeypatch.setattr(compiler.Compiler, "run", evict_and_run)
    assert works(scale("scale_evicted"))
    monkeypatch.setattr(host_library, "_runtimes", [])
    monkeypatch.setattr(host_library, "_libraries", {})
    assert works(scale("scale_evicted_too"))


def test_rejected_sources_are_kept_beside_the_cache_and_the_oldest_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_KEPT", 2)
    for n in (1, 1, 2, 3):
        with pytest.raises(CompileError) as caught:
            HOST.compile([kernel("scale_bad", f"y[0] = undeclared_{n};")])
        assert caught.value.source is not None
        assert f"undeclared_{n}" in caught.value.source.read_text()
    kept = folder.parent / "failed"
    assert len(list(kept.iterdir())) == 2
    assert caught.value.source.parent == kept


def test_where_a_failure_cannot_be_written_the_failure_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that of writing it."""

    def is_full(*_: object, **__: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "no usable temporary directory")

    (tmp_path / "file").touch()
    monkeypatch.setattr(failures, "_temporary", is_full)
    with options(cache_dir=str(tmp_path / "file")), pytest.raises(CompileError) as caught:
        HOST.compile([kernel("scale_unwritten", "y[0] = undeclared;")])
    assert caught.value.source is None
    assert "undeclared" in caught.value.log


def test_a_private_folder_that_a_cleaner_removed_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with options(cache_dir=str(tmp_path / "file")):
        assert works(scale("scale_cleaned_a"))
        shutil.rmtree(next(private.process_folders()))
        assert works(scale("scale_cleaned_b"))


@pytest.mark.parametrize("becomes", ["nothing", "a file"])
def test_a_cache_folder_may_go_while_the_process_runs(tmp_path: Path, becomes: str) -> None:
    """A new kernel links with the runtime library, which was loaded from there."""
    cache = tmp_path / "cache"
    with options(cache_dir=str(cache)):
        assert works(scale("scale_before"))
    script = _GOES.format(cache=cache, becomes=becomes)
    result = forked.run(script)
    assert result.returncode == 0, result.stderr


_GOES = """
import pathlib, shutil
from tests.runtime.test_places import options, scale, works

cache = pathlib.Path("{cache}")
with options(cache_dir=str(cache)):
    assert works(scale("scale_before"))
    shutil.rmtree(cache)
    if "{becomes}" == "a file":
        cache.touch()
    assert works(scale("scale_behind"))
"""
_FORKS = """
import os, sys, torch
from thunder_fuser import DataType, FusionDefinition

def added(count):
    with FusionDefinition() as fd:
        t = fd.define_tensor([1 << 20], True, DataType.Float)
        for _ in range(count):
            t = fd.ops.add(t, 1.0)
        fd.add_output(t)
    return fd

x, known = torch.zeros(1 << 20), added(1)
for _ in range(5):
    known.execute([x])
child = os.fork()
if not child:
    # The threads of the parent are not here; what it has loaded is.
    assert all(known.execute([x])[0][5] == 1 for _ in range(5))
    assert added(2).execute([x])[0][5] == 2
    sys.exit()
_, status = os.waitpid(child, 0)
assert not status, status
assert added(3).execute([x])[0][5] == 3
print("right")
"""


_LOADS_AFTER_FORK = """
import os, signal, sys, torch
from thunder_fuser import DataType, FusionDefinition

with FusionDefinition() as fd:
    t = fd.define_tensor([1 << 20], True, DataType.Float)
    fd.add_output(fd.ops.add(t, 1.0))

torch.set_num_threads(2)
x = torch.sin(torch.zeros(1 << 20))  # in torch's threads, which no child has
child = os.fork()
if not child:
    signal.alarm(200)
    assert all(fd.execute([x])[0][5] == 1 for _ in range(5))
    os._exit(0)
_, status = os.waitpid(child, 0)
print(status)
"""


def test_a_forked_child_does_not_wait_for_torchs_threads_of_its_parent() -> None:
    result = forked.run(_LOADS_AFTER_FORK, THUNDER_FUSER_HOST_THREADS="2")
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


_WITHOUT_THREADS = """
import os, resource, signal, sys, torch
from tests.runtime.hand_written import scale
from thunder_fuser.runtime.host.target import HOST

(launch,) = HOST.compile([scale(grid=(64, 1, 1))])
x, y = torch.arange(10.0), torch.zeros(10)
child = os.fork()
if not child:
    signal.alarm(200)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    # Not enough for the stack of a thread.
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
    launch(x.data_ptr(), y.data_ptr(), 3.0, 10)
    os._exit(0 if torch.equal(y, 3 * x) else 1)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_that_gets_no_threads_has_one() -> None:
    result = forked.run(_WITHOUT_THREADS, THUNDER_FUSER_HOST_THREADS="4")
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


def test_a_forked_child_has_threads_and_a_private_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {
        "THUNDER_FUSER_CACHE_DIR": str(tmp_path / "file"),
        "THUNDER_FUSER_HOST_THREADS": "2",
        "TMPDIR": str(tmp_path),
    }
    result = forked.run(_FORKS, **environment)
    assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
