"""What the system lacks for a while, and compilers that it ends."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
from pathlib import Path

import pytest
import thunder
import torch

import thunder_fuser
from tests.runtime.hand_written import scale
from thunder_fuser.config import options
from thunder_fuser.errors import ResourceError
from thunder_fuser.runtime.fallback import is_replaceable
from thunder_fuser.runtime.host import compiler
from thunder_fuser.runtime.host.target import HOST
from thunder_fuser.runtime.scarcity import end_of, is_passing

OF_G = "g++: fatal error: {} signal terminated program cc1plus\ncompilation terminated.\n"
OF_CLANG = "clang: error: unable to execute command: {}\nclang: error: frontend command failed\n"
OF_LINKER = "collect2: fatal error: ld terminated with signal 9 [{}]\n"


@pytest.mark.parametrize(
    ("status", "messages", "end"),
    [
        (-signal.SIGKILL, "", "was ended by SIGKILL"),
        (128 + signal.SIGTERM, "", "was ended by SIGTERM"),
        (1, OF_G.format("Killed"), "was ended (Killed)"),
        (1, OF_G.format("CPU time limit exceeded"), "was ended (CPU time limit exceeded)"),
        (1, "g++: internal compiler error: Killed (program cc1plus)\n", "was ended (Killed)"),
        (1, OF_CLANG.format("Terminated"), "was ended (Terminated)"),
        (1, OF_LINKER.format("Killed"), "was ended (Killed)"),
        (1, "cc1plus: out of memory allocating 65536 bytes", "failed (out of memory)"),
        (1, "fatal error: prelude.cuh: Too many open files", "failed (Too many open files)"),
        # Bugs, which come again.
        (-signal.SIGSEGV, "", ""),
        (128 + signal.SIGABRT, "", ""),
        (1, OF_G.format("Segmentation fault"), ""),
        (1, OF_CLANG.format("Segmentation fault (core dumped)"), ""),
        (1, "kernel.cu:3: error: 'Killed' was not declared in this scope", ""),
    ],
)
def test_how_a_compiler_ended(status: int, messages: str, end: str) -> None:
    assert end_of(subprocess.CompletedProcess([], status, "", messages)) == end


@pytest.fixture
def doomed(tmp_path: Path) -> Path:
    """A compiler that a signal ends as long as `doom` lies next to it."""
    script, (command, *_) = tmp_path / "g++", compiler.find_compiler().command
    script.write_text(
        "#!/bin/sh\n"
        f'case "$1" in --version) ;; *) test -e {tmp_path}/doom && kill -9 $$ ;; esac\n'
        f'exec {command} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "doom").touch()
    return script


def test_a_compiler_that_is_killed_is_no_bug_and_is_tried_again(
    doomed: Path, tmp_path: Path
) -> None:
    function = thunder.jit(lambda x: torch.sin(x) * 19 + 4, executors=[thunder_fuser.executor])
    x = torch.randn(7)
    with options(strict=False, cxx=str(doomed), cache_dir=str(tmp_path / "cache")):
        with pytest.warns(RuntimeWarning, match="ended by SIGKILL") as caught:
            results = [function(x) for _ in range(2)]
        (doomed.parent / "doom").unlink()
        results += [function(x) for _ in range(2)]
    (warning,) = (str(w.message) for w in caught if "fuser0" in str(w.message))
    assert "fuser0 runs in torch for now, and a later call tries again" in warning
    assert f"{doomed} was ended by SIGKILL at " in warning
    assert "free memory" in warning
    assert "bug" not in warning
    for y in results:
        torch.testing.assert_close(y, torch.sin(x) * 19 + 4)
    (report,) = thunder_fuser.fusions(function)
    assert len(report.kernels) == 1


def test_a_process_without_descriptors_compiles_later(tmp_path: Path) -> None:
    """And removes nothing from the cache that it cannot open."""
    with options(cache_dir=str(tmp_path)):
        HOST.compile([scale("scale_descriptors")])
        before = sorted(tmp_path.rglob("*.so"))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open("/dev/null", os.O_RDONLY)
        os.close(free)
        errors = list[Exception]()
        try:
            # All below the first free one are in use.
            for left in range(8):
                resource.setrlimit(resource.RLIMIT_NOFILE, (free + left, limits[1]))
                for name in ("scale_descriptors", f"scale_no_descriptor_{left}"):
                    try:
                        HOST.compile([scale(name)])
                    except Exception as error:
                        errors.append(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(errors) > 4
        assert all(is_passing(e) and is_replaceable(e) for e in errors)
        assert set(before) <= set(tmp_path.rglob("*.so"))
        assert all(HOST.compile([scale("scale_descriptors"), scale("scale_no_descriptor_0")]))


def test_a_compiler_that_cannot_be_started_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    found = compiler.find_compiler()
    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ResourceError, match=r"does not start .*temporarily unavailable"):
        found.run([])
    with options(cxx="/bin/true"), pytest.raises(ResourceError, match="/bin/true does not start"):
        compiler.find_compiler()
    monkeypatch.undo()
    assert compiler.find_compiler() == found
