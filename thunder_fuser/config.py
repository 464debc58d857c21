"""User options, as one frozen dataclass mirrored by environment variables.

A field `name` of `Options` is the variable `THUNDER_FUSER_NAME`; `TABLE` is derived from the
fields, and the parser, `doctor` and docs/options.md read it, so that an option is declared in one
place.
The environment is read once, at the first `current()`.  An empty variable counts as unset.

    with options(strict=True, logs="segment"):
        fn(x)

Overrides nest and live in a context variable: they never leak into other threads or tasks, and a
compilation uses the options of the thread that requests it.  Only `logs` acts on the whole
process, because loggers do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import os
import re
import sys
import tempfile
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from thunder_fuser import log
from thunder_fuser.errors import FuserTypeError, FuserValueError

PREFIX = "THUNDER_FUSER_"

_T = TypeVar("_T")


def _option(
    default: _T,
    doc: str,
    *,
    minimum: int | None = None,
    pattern: str = ".*",
    example: str = "",
    is_folder: bool = False,
) -> _T:
    """Declare an option field with its documentation and constraints beyond the type."""
    metadata = {
        "doc": doc,
        "minimum": minimum,
        "pattern": pattern,
        "example": example,
        "is_folder": is_folder,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a compilation.  Immutable; values are checked at construction.

    docs/options.md describes each field.  Raises FuserTypeError for a wrong type, FuserValueError
    for a wrong value, with the option, the expected values and the given one.
    """

    strict: bool = _option(False, "raise on our own bugs instead of falling back to torch")
    fuel: int | None = _option(None, "how many fusions may be made, for bisecting", minimum=0)
    target: Literal["auto", "host"] = _option(
        "auto", "auto: follow the device of the tensors; host: CPU kernels only"
    )
    precision: Literal["strict", "fast"] = _option(
        "strict", "fast also drops casts and reorders where the last bits may change"
    )
    cuda_arch: str | None = _option(
        None,
        "plan and compile for this architecture, which needs no GPU",
        pattern=r"sm_\d{2,3}[af]?",
        example="sm_90",
    )
    clusters: bool = _option(
        True, "let blocks of a GPU's kernel share rows as thread block clusters, where it has these"
    )
    dynamic_sizes: bool = _option(
        True, "reuse kernels for further sizes of a program; 0: compile them anew for each size"
    )
    cxx: str | None = _option(None, "host C++ compiler; unset: $CXX, g++, clang++, zig in turn")
    host_threads: int | None = _option(
        None, "CPU threads that run blocks; unset: torch's number", minimum=1
    )
    host_debug: bool = _option(
        False, "run CPU kernels with guard pages, NaN-filled shared memory, divergence checks"
    )
    executables: int = _option(
        2048,
        "compiled plans that a process keeps, one for each kind of inputs; the longest unused goes",
        minimum=1,
    )
    verify: bool = _option(False, "check the IR between passes, and the names of kernel IR")
    logs: str = _option("", 'channels to print, such as "passes,segment,+codegen" (+: verbose)')
    cache_dir: str | None = _option(
        None,
        "compiled kernels; unset: thunder_fuser in $XDG_CACHE_HOME or ~/.cache",
        is_folder=True,
    )
    dump_dir: str | None = _option(
        None, "write what each stage of a compilation makes into a folder here", is_folder=True
    )

    def __post_init__(self) -> None:
        for option in TABLE:
            value = getattr(self, option.name)
            if isinstance(value, os.PathLike) and str in option.kinds:
                object.__setattr__(self, option.name, os.fspath(value))
            if bool in option.kinds and type(value) is int and value in (0, 1):
                object.__setattr__(self, option.name, bool(value))
            option.check(getattr(self, option.name), option.name)
        log.parse_channels(self.logs)

    @property
    def cache_folder(self) -> Path:
        """Folder of compiled kernels, with a subfolder per target.  It may not exist yet."""
        if self.cache_dir:
            return Path(self.cache_dir).expanduser()
        if xdg := os.environ.get("XDG_CACHE_HOME"):
            return Path(xdg) / log.PACKAGE
        try:
            return Path.home() / ".cache" / log.PACKAGE
        except RuntimeError:
            # A container without a home.  The user ID keeps users apart in a shared folder.
            return Path(tempfile.gettempdir()) / f"{log.PACKAGE}-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of `TABLE`: a field of `Options` as the environment and the documentation see it."""

    name: str
    doc: str
    default: object
    kinds: tuple[type, ...]
    choices: tuple[str, ...]
    minimum: int | None
    pattern: str
    example: str
    is_folder: bool

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()

    @property
    def expects(self) -> str:
        """Accepted values, in words."""
        if self.choices:
            return " or ".join(self.choices)
        if bool in self.kinds:
            return "1 or 0 (also true/false, yes/no, on/off)"
        if int in self.kinds:
            return f"an integer of at least {self.minimum}"
        return f"text like {self.example}" if self.example else "text"

    def parse(self, text: str) -> object:
        """Parse the variable's non-empty text; raises FuserValueError."""
        value: object = text
        if bool in self.kinds:
            value = _BOOLEANS.get(text.lower())
        elif int in self.kinds:
            value = int(text) if re.fullmatch(r"[+-]?\d+", text) else None
        if value is None:
            raise FuserValueError(f"{self.variable}: expected {self.expects}, got {text!r}")
        self.check(value, self.variable)
        return value

    def check(self, value: object, where: str) -> None:
        """Raise FuserTypeError or FuserValueError unless the option accepts `value`; `where` names
        the option in the message.
        """
        problem = f"{where}: expected {self.expects}, got {value!r}"
        # Exact type: bool is a subclass of int, but True is no valid integer option.
        if type(value) not in self.kinds:
            raise FuserTypeError(problem)
        fits: object
        if isinstance(value, str):
            fits = (
                value in self.choices
                if self.choices
                else re.fullmatch(self.pattern, value, re.DOTALL)
            )
        else:
            fits = self.minimum is None or not isinstance(value, int) or value >= self.minimum
        if not fits:
            raise FuserValueError(problem)
        if self.is_folder and isinstance(value, str):
            try:
                Path(value).expanduser()
            except RuntimeError as error:
                user = Path(value).parts[0]
                raise FuserValueError(
                    f"{where}: {value!r}: {user} has no home folder; give an absolute path"
                ) from error


_BOOLEANS = dict.fromkeys(("1", "true", "yes", "on"), True)
_BOOLEANS |= dict.fromkeys(("0", "false", "no", "off"), False)


def _row(field: dataclasses.Field[Any], annotation: Any) -> Option:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    return Option(
        name=field.name,
        default=field.default,
        kinds=(str,) if choices else kinds,
        choices=choices,
        **field.metadata,
    )


_ANNOTATIONS = typing.get_type_hints(Options)
TABLE: tuple[Option, ...] = tuple(
    _row(field, _ANNOTATIONS[field.name]) for field in dataclasses.fields(Options)
)


def from_environment(environment: Mapping[str, str]) -> Options:
    """Return the options that `environment` sets; warn about unknown variables with our prefix."""
    by_variable = {option.variable: option for option in TABLE}
    values = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        if variable not in by_variable:
            warnings.warn(
                f"{variable} is not an option of thunder_fuser{_hint(variable, by_variable)}",
                stacklevel=2,
            )
        elif text.strip():
            option = by_variable[variable]
            values[option.name] = option.parse(text.strip())
    return Options(**values)  # type: ignore[arg-type]


def _hint(wrong: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"


@functools.cache
def _process_options() -> Options:
    chosen = from_environment(_with_known_channels(os.environ))
    log.configure(chosen.logs)
    return chosen


def _with_known_channels(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without unknown log channels, which are reported on stderr: a typing
    error in a log setting should not end the program.
    """
    variable = f"{PREFIX}LOGS"
    known = []
    for word in log.words(environment.get(variable, "")):
        try:
            log.parse_channels(word)
        except FuserValueError as error:
            print(f"{log.PACKAGE}: {variable}: {error}", file=sys.stderr)
        else:
            known.append(word)
    return {**environment, variable: ",".join(known)}


_overridden: ContextVar[Options | None] = ContextVar("thunder_fuser_options", default=None)


def current() -> Options:
    """Current options: those of the innermost `options(...)` of this thread, or the environment."""
    return _overridden.get() or _process_options()


@contextlib.contextmanager
def options(**overrides: Any) -> Iterator[Options]:
    """Override options inside a `with` block, by the field names of `Options`; options not named
    keep their current value. Yields the resulting `Options`.

    Raises FuserTypeError for an unknown name or a wrong type, FuserValueError for a wrong value.
    """
    known = {option.name: option for option in TABLE}
    for name in overrides:
        if name not in known:
            raise FuserTypeError(f"{name} is not an option{_hint(name, known)}")
    outer = current()
    inner = dataclasses.replace(outer, **overrides)
    token = _overridden.set(inner)
    try:
        log.configure(inner.logs)
        yield inner
    finally:
        _overridden.reset(token)
        log.configure(outer.logs)
