"""Observers of a compilation: callbacks that receive the result of each stage.

A stage calls `watch("plan", plan)`. Logs (`THUNDER_FUSER_LOGS`) and numbered files
(`THUNDER_FUSER_DUMP_DIR`) are built-in observers; `observing` adds another one for a block:

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
from thunder_fuser.kernel_ir import KernelIR
from thunder_fuser.kernel_ir.printer import listing
from thunder_fuser.log import PACKAGE

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A finished stage of a compilation.

    name     "trace", "fusion", "passes.<name of the pass>", "plan", "refusals",
             "schedule", "kernel ir", "kernel" or "machine code"
    subject  name of the compiled fusion
    number   index of the event in this compilation, from 0
    seconds  time since the previous event
    changed  False if the stage, a pass, returned its input unchanged
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
    """Call `observer(stage, value)` for each stage of compilations in this context. Its exceptions
    propagate.
    """
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


class Watch:
    """Event sink of one compilation: each stage calls it with its result."""

    def __init__(self, subject: str, begins: object) -> None:
        """`begins` is the compiled object; a digest of its text distinguishes dump folders of
        equal `subject`.
        """
        self.subject = subject
        self._begins = begins
        self._number = 0
        self._last = time.perf_counter()

    def __call__(self, name: str, value: object, *, changed: bool = True, detail: str = "") -> None:
        """Pass the result of a stage to all observers."""
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
    """Full text of a stage's value."""
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
    """Log a stage in its channel: a summary at INFO, the full text at DEBUG."""
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
    """One-line summary of a value with a long text; "" for others."""
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
    """Write a stage to a numbered file in `folder`; none for a pass that changed nothing."""
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
