"""The status line: silent at first, rewritten on a terminal, one line elsewhere. Log channels."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from thunder_fuser import log
from thunder_fuser.config import options
from thunder_fuser.errors import FuserValueError

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


def test_pieces_share_their_patience_and_their_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three fusions, none of which takes long, at two calls; then they are compiled again."""
    monkeypatch.setattr(log, "PATIENCE", 0.02)
    pieces = log.Pieces("compiling", total=3)
    for _ in range(2):
        for k in range(3):
            assert capsys.readouterr().err == ""
            with pieces.piece(f"fuser{k}"):
                time.sleep(0.01)
                with log.status("compiling", total=1):
                    pass
        assert re.fullmatch(SUMMARY.format(3), capsys.readouterr().err)


def test_a_terminal_sees_which_piece_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PATIENCE", 0.0)
    terminal = Terminal(awaited="compiling 2/3 (fuser1) ")
    pieces = log.Pieces("compiling", total=3)
    with contextlib.redirect_stderr(terminal):
        with pieces.piece("fuser0"):
            pass
        with pieces.piece("fuser1"):
            assert terminal.arrived.wait(30)
    assert "took" not in terminal.getvalue()


class Closed(io.StringIO):
    """A stderr whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [Closed(), None])
def test_without_a_reader_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    monkeypatch.setattr(log, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    with log.status("compiling", total=1) as progress:
        progress.step("map")


# ---- channels


def test_logs_follow_a_stderr_that_was_closed() -> None:
    for _ in range(2):
        with contextlib.closing(io.StringIO()) as text, contextlib.redirect_stderr(text):
            with options(logs="passes"):
                logging.getLogger("thunder_fuser.passes").info("said")
            assert text.getvalue() == "[thunder_fuser.passes] said\n"


@pytest.fixture(scope="module")
def everything() -> str:
    """What all channels say, in detail, of a function and a definition that are new."""
    # Not at the top: the status line needs neither torch nor Thunder.
    import thunder
    import torch

    import thunder_fuser

    with contextlib.redirect_stderr(io.StringIO()) as text, options(logs="+all"):
        with thunder_fuser.FusionDefinition() as fd:
            x = fd.define_tensor([8, 16], True, thunder_fuser.DataType.Float)
            total = fd.ops.sum(fd.ops.add(x, 0.0), [1], keepdim=True)
            fd.add_output(fd.ops.neg(fd.ops.segment_set(fd.ops.div(x, total))))
        fd.execute([torch.randn(8, 16)])
        function = thunder.jit(lambda x: torch.relu(x) * 2, executors=[thunder_fuser.executor])
        function(torch.randn(3))
    return text.getvalue()


SAID = {
    "definition": "operations, 1 inputs, 1 outputs",
    "thunder": "primitives, 1 inputs, 1 outputs",
    "passes": r"expressions, \d+ inputs, \d+ outputs in",
    "segment": "boundary T",
    "schedule": "reduction: 8 rows x 16 columns",
    "lower": "block_reduce sum|warp_reduce sum|sum.finish",
    "codegen": 'extern "C" __global__ void',
    "runtime": "is in the cache|compiled in",
}


@pytest.mark.parametrize("channel", log.CHANNELS)
def test_every_channel_says_something(everything: str, channel: str) -> None:
    said = [
        part
        for part in everything.split("[thunder_fuser.")
        if part.startswith(log.CHANNELS[channel])
    ]
    assert any(re.search(SAID[channel], part) for part in said), said


@pytest.mark.parametrize(
    ("spec", "logger"),
    [
        ("segment", "segment"),
        ("fold_broadcasts", "passes.fold_broadcasts"),
        ("passes.dead_code", "passes.dead_code"),
        ("runtime.compilation.cache", "runtime.compilation.cache"),
    ],
)
def test_a_channel_is_a_stage_a_module_or_a_pass(spec: str, logger: str) -> None:
    assert list(log.parse_channels(f"+{spec}")) == [f"thunder_fuser.{logger}"]


@pytest.mark.parametrize(
    ("spec", "hint"),
    [("fold_broadcast", "did you mean fold_broadcasts"), ("sharding", "known: all, definition")],
)
def test_a_channel_that_is_none_is_refused(spec: str, hint: str) -> None:
    with pytest.raises(FuserValueError, match=f"no channel is called '{spec}'; {hint}"):
        log.parse_channels(spec)


def test_a_wrong_channel_in_the_environment_is_one_line_and_no_end() -> None:
    script = "from thunder_fuser.config import current; print(current().logs)"
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "THUNDER_FUSER_LOGS": "segmnt, +codegen"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout) == (0, "+codegen\n")
    assert result.stderr == (
        "thunder_fuser: THUNDER_FUSER_LOGS: logs: no channel is called 'segmnt'; "
        "did you mean segment?\n"
    )
