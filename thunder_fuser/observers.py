"""Observers of a compilation: who is shown the value that each stage hands to the next.

A stage says `watch("plan", plan)` and knows no more. Logs (`THUNDER_FUSER_LOGS`) and numbered files
(`THUNDER_FUSER_DUMP_DIR`) are observers that are always there; `observing` adds another for a
while:

    with observing(lambda stage, value: print(f"{1e3 * stage.seconds:6.1f} ms {stage.name}")):
        fd.execute(inputs)
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from thunder_fuser.codegen.kernel import Kernel, listing_text
from thunder_fuser.config import current
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.printer import to_python
from thunder_fuser.log import PACKAGE
from thunder_fuser.lower.kernel_ir import KernelIR
from thunder_fuser.lower.kernel_ir_text import listing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a compilation that has made a value.

    name     "trace", "fusion", "passes.<name of the pass>", "plan", "refusals",
             "schedule", "kernel ir", "kernel" or "machine code"
    subject  what is compiled: the name of a fusion
    number   how many values of this compilation were shown before
    seconds  since the value before
    changed  whether the value is another one than the stage was given: a pass may find nothing
    detail   which of several: "segment 2"
    """

    name: str
    subject: str
    number: int
    seconds: float
    changed: bool = True
    detail: str = ""


Observer = Callable[[Stage, object], None]

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Show `observer` each stage of what is compiled in this context. What it raises is raised."""
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


class Watch:
    """One compilation, as its stages see it: each calls it with what it has made."""

    def __init__(self, subject: str, begins: object) -> None:
        """`begins` is what is compiled; its text tells the files of one `subject` from others."""
        self.subject = subject
        self._begins = begins
        self._number = 0
        self._last = time.perf_counter()

    def __call__(self, name: str, value: object, *, changed: bool = True, detail: str = "") -> None:
        """Show the value of a stage to everyone who looks."""
        seconds = time.perf_counter() - self._last
        stage = Stage(name, self.subject, self._number, seconds, changed, detail)
        self._number += 1
        logged(stage, value)
        if folder := current().dump_dir:
            dumped(Path(folder).expanduser() / self._folder, stage, value)
        for observer in _observers.get():
            observer(stage, value)
        self._last = time.perf_counter()

    @property
    def _folder(self) -> str:
        digest = hashlib.sha256(text_of(self._begins).encode()).hexdigest()[:8]
        return re.sub(r"[^\w.-]", "_", f"{self.subject}-{digest}")


def text_of(value: object) -> str:
    """A value of a stage in full."""
    match value:
        case Fusion():
            return to_python(value)
        case KernelIR():
            return listing(value)
        case Kernel():
            return listing_text((value,)).rstrip()
        case [*entries]:
            return "\n".join(map(str, entries))
    return str(value)


# ---- logs

_CHANNELS = {
    "trace": "frontends.thunder",
    "fusion": "passes",
    "plan": "segment",
    "refusals": "segment",
    "schedule": "templates",
    "kernel ir": "lower",
    "kernel": "codegen",
    "machine code": "runtime",
}
_TOLD_IN_FULL = ("plan", "schedule", "machine code")


def logged(stage: Stage, value: object) -> None:
    """Print a stage in its channel: what it made at INFO, all of a text or listing at DEBUG."""
    logger = logging.getLogger(f"{PACKAGE}.{_CHANNELS.get(stage.name, stage.name)}")
    if not logger.isEnabledFor(logging.INFO):
        return
    where = f"{stage.subject}, {stage.detail}" if stage.detail else stage.subject
    if stage.name in _TOLD_IN_FULL:
        logger.info("%s: %s", where, text_of(value))
        return
    if headline := _headline(value):
        level = logging.INFO if stage.changed else logging.DEBUG
        logger.log(level, "%s: %s in %.2f ms", where, headline, 1e3 * stage.seconds)
    if stage.changed and logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s: %s", where, text_of(value))


def _headline(value: object) -> str:
    """What is said of a value whose text is long; nothing of others."""
    match value:
        case Fusion():
            counts = len(value.exprs), len(value.inputs), len(value.outputs)
            return "{} expressions, {} inputs, {} outputs".format(*counts)
        case KernelIR():
            shared = f"{value.shared_bytes:,} B of shared memory"
            blocks = f"{value.blocks:,} blocks of {value.threads:,} threads"
            together = f" in clusters of {value.cluster}" if value.cluster > 1 else ""
            return f"{blocks}{together}, {shared}"
        case Kernel():
            grid, block = (" x ".join(map(str, n)) for n in (value.grid, value.block))
            lines = value.source.count("\n")
            shared = f"{value.shared_bytes:,} B of shared memory"
            return f"{value.name}: {lines} lines, {grid} blocks of {block} threads, {shared}"
    return ""


# ---- numbered files

_SUFFIXES = {"trace": ".py", "plan": ".plan", "kernel ir": ".kir", "kernel": ".cu"}


def dumped(folder: Path, stage: Stage, value: object) -> None:
    """Write a stage into `folder`, numbered in order; a pass that found nothing leaves no file."""
    if not stage.changed:
        return
    words = [f"{stage.number:02}", stage.name, *([stage.detail] if stage.detail else [])]
    suffix = _SUFFIXES.get(stage.name, ".fusion" if isinstance(value, Fusion) else ".txt")
    path = folder / (re.sub(r"[^\w.-]", "_", "-".join(words)) + suffix)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(value) + "\n", encoding="utf-8")
    except OSError as error:
        _log.warning("%s was not written: %s", path, error)
