"""What the compiler says while it works: log channels and one status line.

Channels are stdlib loggers named after the modules (`logging.getLogger(__name__)`), so that a
program that embeds us configures them like any other.  The short way is
`THUNDER_FUSER_LOGS="passes,segment,+codegen"`: a name is a stage of the compiler, a module of one
("runtime.cache") or a pass ("dead_code"), "all" is everything, and a "+" adds the details (DEBUG,
not INFO).

`status` tells a waiting user that a long compilation is alive.  Nothing shows for the first two
seconds; then a terminal gets one line that rewrites itself, and whatever else stderr is (a file, a
notebook) gets a single line at the end.
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
"""The stages of the compiler that say something, and the packages that do it."""

# Seconds of work before the status line appears, and between two states of it.
PATIENCE = 2.0
_REDRAW = 0.25


def parse_channels(spec: str) -> dict[str, int]:
    """Logger name to level for a list such as "passes,+codegen".

    Raises FuserValueError for a channel that does not exist.
    """
    levels = {}
    for word in words(spec):
        name = _logger_name(word.removeprefix("+"))
        levels[name] = logging.DEBUG if word.startswith("+") else logging.INFO
    return levels


def words(spec: str) -> list[str]:
    """The channels of a list, each with its "+" if it has one."""
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
    """The modules of the stages: "passes.dead_code", ..."""
    folder = Path(__file__).parent
    return tuple(
        ".".join((stage, *path.relative_to(home).with_suffix("").parts))
        for stage, package in CHANNELS.items()
        for home in [folder.joinpath(*package.split("."))]
        for path in sorted(home.rglob("[!_]*.py"))
    )


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the stderr of the moment: notebooks and test runners replace it, and close it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr or io.StringIO()  # there is none where there is no console

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        """What `logging.StreamHandler` opened with."""


_handler = _Stderr()
_handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
_selected: dict[str, int] = {}


def configure(spec: str) -> None:
    """Print the channels in `spec`, and no others, to stderr.  Applies to the whole process."""
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
    """Progress of one piece of work; made by `status`. `spent`: seconds of what is done before."""

    def __init__(self, verb: str, total: int, spent: float = 0.0, done: int = 0) -> None:
        self.verb = verb
        self._total = total
        self._done = done
        self._name = ""
        self._start = time.monotonic() - spent

    def step(self, name: str) -> None:
        """The next item, called `name`, begins."""
        self._done = min(self._done + 1, self._total)
        self._name = name

    @property
    def seconds(self) -> float:
        """Time since the work began."""
        return time.monotonic() - self._start

    @property
    def line(self) -> str:
        """The state as one line of text."""
        name = f" ({self._name})" if self._name else ""
        count = f"{self._done}/{self._total}"
        return f"{PACKAGE}: {self.verb} {count}{name} {self.seconds:.1f} s"


# Only one status draws at a time; one that starts inside another, or in another thread, is silent.
_screen = threading.Lock()


@contextlib.contextmanager
def status(verb: str, *, total: int) -> Iterator[Status]:
    """Report on work of `total` steps, such as `status("compiling", total=23)`."""
    progress = Status(verb, total)
    with _on_screen(progress, total):
        yield progress


@contextlib.contextmanager
def _on_screen(progress: Status, total: int | None) -> Iterator[None]:
    """Show progress, unless another is shown. `total`: of what is done then, if anything is."""
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
    """Progress of work that is done here and there: the fusions of a trace, each of which is
    compiled at its first call. Patience is with all of them together.
    """

    def __init__(self, verb: str, total: int) -> None:
        self._verb = verb
        self._total = total
        self._done = 0
        self._spent = 0.0

    @contextlib.contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """The next of them, called `name`. What comes when all are done begins again."""
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
    """Write a line if anybody still reads them: nobody's program ends because of it."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


@contextlib.contextmanager
def _painted(progress: Status, stream: TextIO) -> Iterator[None]:
    """Rewrite one line of a terminal, from `PATIENCE` seconds on, and wipe it at the end.

    A thread does it, because a single step can be long.  Carriage returns and spaces, no escape
    sequences: it works on every terminal and there is nothing for NO_COLOR to switch off.
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
