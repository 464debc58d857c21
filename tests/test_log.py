"""The status line: silent at first, rewritten on a terminal, one line elsewhere."""

from __future__ import annotations

import contextlib
import io
import re
import threading

import pytest

from thunder_fuser import log

SUMMARY = r"thunder_fuser: compiling {} took \d+\.\d s\n"


class Terminal(io.StringIO):
    """A stderr that says it is a terminal, and when `awaited` has been written to it."""

    def __init__(self, awaited: str = "") -> None:
        super().__init__()
        self.arrived = threading.Event()
        self._awaited = awaited

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._awaited in text:
            self.arrived.set()
        return count


def test_quick_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PATIENCE", 1000.0)
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal), log.status("compiling", total=2) as progress:
        progress.step("map")
        progress.step("row")
    assert terminal.getvalue() == ""


def test_a_terminal_sees_one_line_that_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PATIENCE", 0.0)
    monkeypatch.setattr(log, "_REDRAW", 0.001)
    terminal = Terminal(awaited="compiling 7/23 (reduction) ")
    with contextlib.redirect_stderr(terminal), log.status("compiling", total=23) as progress:
        for _ in range(7):
            progress.step("reduction")
        assert terminal.arrived.wait(30)
    first, *states, wiped, summary = terminal.getvalue().split("\r")
    assert first == ""
    assert all(state.startswith("thunder_fuser: compiling ") for state in states)
    assert wiped.strip() == ""
    assert {len(state) for state in states} == {len(wiped)}
    assert re.fullmatch(SUMMARY.format(23), summary)
    assert "\x1b" not in terminal.getvalue()


def test_elsewhere_one_line_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "PATIENCE", 0.0)
    with log.status("compiling", total=2) as progress:
        progress.step("map")
        assert capsys.readouterr().err == ""
    assert re.fullmatch(SUMMARY.format(2), capsys.readouterr().err)


def test_a_status_inside_another_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "PATIENCE", 0.0)
    with log.status("compiling", total=2):
        with log.status("linking", total=1) as inner:
            inner.step("x")
        with log.status("linking", total=1):
            pass
    assert re.fullmatch(SUMMARY.format(2), capsys.readouterr().err)
