"""Log channels and the progress line of long compilations.

Channels are stdlib loggers named after the modules (`logging.getLogger(__name__)`), so that an
embedding program configures them like any other.  The short way is
`THUNDER_FUSER_LOGS="passes,segment,+codegen"`: a name is a stage of the compiler, a module of one
("runtime.compilation.cache") or a pass ("dead_code"), "all" is everything, and a "+" selects DEBUG,
not INFO.

`status` shows the progress of a long compilation.  Nothing is shown for the first two seconds; then
a terminal gets one line that is rewritten in place, and any other stderr (a file, a notebook) gets
a single line at the end.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from thunder_fuser.errors import FuserValueError

PACKAGE = "thunder_fuser"
CHANNELS = {
    "definition": "frontends.definition",
    "thunder": "frontends.thunder",
    "passes": "passes",
    "segment": "segment",
    "schedule": "templates",
    "lower": "lower",
    "codegen": "codegen",
    "runtime": "runtime",
}
"""Log channels: stages of the compiler, and the packages whose loggers they are."""

# Seconds before the status line appears, and between two updates of it.
PATIENCE = 2.0
_REDRAW = 0.25


def parse_channels(spec: str) -> dict[str, int]:
    """Parse a list such as "passes,+codegen" to levels by logger name.

    Raises FuserValueError for a channel that does not exist.
    """
    levels = {}
    for word in words(spec):
        name = _logger_name(word.removeprefix("+"))
        levels[name] = logging.DEBUG if word.startswith("+") else logging.INFO
    return levels


def words(spec: str) -> list[str]:
    """Split a list of channels; each keeps its "+"."""
    return [word for part in spec.split(",") if (word := part.strip())]


def _logger_name(channel: str) -> str:
    if channel == "all":
        return PACKAGE
    for name in (channel, f"passes.{channel}"):
        stage, dot, module = name.partition(".")
        if name in CHANNELS or name in _modules():
            return f"{PACKAGE}.{CHANNELS[stage]}{dot}{module}"
    passes = [name.removeprefix("passes.") for name in _modules() if name.startswith("passes.")]
    close = difflib.get_close_matches(channel, ("all", *CHANNELS, *passes, *_modules()), n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: all, {', '.join(CHANNELS)}"
    raise FuserValueError(f"logs: no channel is called {channel!r}; {hint}")


@functools.cache
def _modules() -> tuple[str, ...]:
    """Names of the modules of all stages: "passes.dead_code", ..."""
    folder = Path(__file__).parent
    return tuple(
        ".".join((stage, *path.relative_to(home).with_suffix("").parts))
        for stage, package in CHANNELS.items()
        for home in [folder.joinpath(*package.split("."))]
        for path in sorted(home.rglob("[!_]*.py"))
    )


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # no subscript in Python 3.10
    """Handler for the current `sys.stderr`, which notebooks and test runners replace and close."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr or io.StringIO()  # stderr is None without a console

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        """Ignore the stream that `logging.StreamHandler` sets."""


_handler = _Stderr()
_handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
_selected: dict[str, int] = {}


def configure(spec: str) -> None:
    """Print exactly the channels of `spec` to stderr.  Applies to the whole process."""
    levels = parse_channels(spec)
    root = logging.getLogger(PACKAGE)
    for name in _selected.keys() - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    if levels:
        root.addHandler(_handler)
    else:
        root.removeHandler(_handler)
    _selected.clear()
    _selected.update(levels)


class Status:
    """Progress of one task; made by `status`. `spent`: seconds already spent on `done` items."""

    def __init__(self, verb: str, total: int, spent: float = 0.0, done: int = 0) -> None:
        self.verb = verb
        self._total = total
        self._done = done
        self._name = ""
        self._start = time.monotonic() - spent

    def step(self, name: str) -> None:
        """Begin the next item, called `name`."""
        self._done = min(self._done + 1, self._total)
        self._name = name

    @property
    def seconds(self) -> float:
        """Seconds spent so far, including `spent`."""
        return time.monotonic() - self._start

    @property
    def line(self) -> str:
        """Progress as one line of text."""
        name = f" ({self._name})" if self._name else ""
        count = f"{self._done}/{self._total}"
        return f"{PACKAGE}: {self.verb} {count}{name} {self.seconds:.1f} s"


# One status is drawn at a time; one that starts inside another, or in another thread, is silent.
_screen = threading.Lock()


@contextlib.contextmanager
def status(verb: str, *, total: int) -> Iterator[Status]:
    """Show the progress of `total` steps, as in `status("compiling", total=23)`."""
    progress = Status(verb, total)
    with _on_screen(progress, total):
        yield progress


@contextlib.contextmanager
def _on_screen(progress: Status, total: int | None) -> Iterator[None]:
    """Show progress unless another is shown. `total`: items that are then complete, for the final
    line; None: no final line.
    """
    if not _screen.acquire(blocking=False):
        yield
        return
    stream = _handler.stream
    try:
        with _painted(progress, stream) if stream.isatty() else contextlib.nullcontext():
            yield
    finally:
        _screen.release()
        if total is not None and progress.seconds >= PATIENCE:
            _write(stream, f"{PACKAGE}: {progress.verb} {total} took {progress.seconds:.1f} s\n")


class Pieces:
    """Shared progress of the fusions of a trace, each compiled at its own first call. `PATIENCE`
    applies to their total time.
    """

    def __init__(self, verb: str, total: int) -> None:
        self._verb = verb
        self._total = total
        self._done = 0
        self._spent = 0.0

    @contextlib.contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """Begin the next piece, called `name`. After the last one, counting restarts."""
        if self._done >= self._total:
            self._done, self._spent = 0, 0.0
        progress = Status(self._verb, self._total, self._spent, self._done)
        progress.step(name)
        is_last = self._done + 1 == self._total
        try:
            with _on_screen(progress, self._total if is_last else None):
                yield
        finally:
            self._done += 1
            self._spent = progress.seconds


def _write(stream: TextIO, text: str) -> None:
    """Write a line; errors of a closed stream must not end the user's program."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


@contextlib.contextmanager
def _painted(progress: Status, stream: TextIO) -> Iterator[None]:
    """Rewrite one line of a terminal, from `PATIENCE` seconds on, and erase it at the end.

    In a thread, because a single step can be long.  Uses carriage returns and spaces, no escape
    sequences, so that it works on every terminal and NO_COLOR does not apply.
    """
    finished = threading.Event()
    width = shutil.get_terminal_size().columns - 1

    def paint() -> None:
        delay = max(PATIENCE - progress.seconds, 0.0)
        is_shown = False
        while not finished.wait(delay):
            delay, is_shown = _REDRAW, True
            _write(stream, "\r" + progress.line[:width].ljust(width))
        if is_shown:
            _write(stream, "\r" + " " * width + "\r")

    painter = threading.Thread(target=paint, daemon=True)
    painter.start()
    try:
        yield
    finally:
        finished.set()
        painter.join()
