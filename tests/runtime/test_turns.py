"""Processes that compile the same kernels at the same time: one does, and the others find them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from thunder_fuser.runtime.compilation import private
from thunder_fuser.runtime.compilation.cache import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    tmp_path.chmod(0o700)
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return Folder(path)


def forked(work: Callable[[], None]) -> int:
    """A child that does some work, and ends."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def test_one_of_several_processes_makes_an_entry(folder: Folder, tmp_path: Path) -> None:
    made = tmp_path / "made"

    def make() -> None:
        with folder.turn("name"):
            if folder.find("name", "key") is None:
                with made.open("a") as file:
                    file.write("x")
                time.sleep(0.2)
                folder.keep(b"content", "name", "key")

    children = [forked(make) for _ in range(6)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert made.read_text() == "x"
    assert [path.name for path in folder.path.iterdir()] == ["name"]


def test_nobody_waits_for_a_dead_process(folder: Folder) -> None:
    def dies() -> None:
        with folder.turn("name"):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(dies), 0)
    assert list(folder.path.iterdir())
    start = time.monotonic()
    with folder.turn("name"):
        pass
    assert time.monotonic() - start < private._TURN / 2
    assert not list(folder.path.iterdir())


def test_nobody_waits_for_ever(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_TURN", 0.1)
    with folder.turn("name"):
        with folder.turn("name"):
            pass
        # It is still the first one's.
        assert list(folder.path.iterdir())


def test_where_no_file_can_be_written_nobody_waits(tmp_path: Path) -> None:
    with Folder(tmp_path / "missing").turn("name"):
        pass
