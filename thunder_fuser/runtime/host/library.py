"""Shared libraries of the host target: compilation, caching, loading and unloading.

The key of a library is the digest of its source, the templates, the compiler and its flags, and the
processor. If the cache folder is full or mounted noexec, other folders and memory are tried, with
one warning.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import logging
import os
import shutil
import time
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thunder_fuser.codegen import headers
from thunder_fuser.errors import REPORT, CompileError, ResourceError
from thunder_fuser.runtime.compilation.cache import Folder, folder_to_write, folders, key_of
from thunder_fuser.runtime.compilation.failures import save_rejected
from thunder_fuser.runtime.fork import Lock
from thunder_fuser.runtime.host.compiler import Compiler, first_error, starved
from thunder_fuser.runtime.scarcity import end_of, is_passing

_log = logging.getLogger(__name__)

_NO_ROOM = ("No space left on device", "Disk quota exceeded")
"""Messages of compilers for a full disk."""
_FULL = 1 << 20
"""Free bytes below which a disk counts as full."""
_FAULTY = (
    *("undefined symbol", "file too short", "invalid ELF header", "file data"),
    "only ET_DYN and ET_EXEC",  # an object file that was not linked
)
"""Loader messages for a faulty library, for which no other folder would help."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Shared library to compile: source, flags, compiler, and in `needs` a library to link with."""

    name: str
    text: str
    flags: tuple[str, ...]
    compiler: Compiler
    needs: Unit | None = None

    @property
    def key(self) -> str:
        """Digest of everything that the library depends on."""
        return key_of(
            self.text,
            headers.fingerprint(),
            self.compiler.command,
            self.compiler.version,
            self.flags,
            self.needs and self.needs.key,
            _processor(),
        )

    def file_name(self, key: str) -> str:
        """File name that is unique for the content; the loader identifies libraries by it."""
        return f"{self.name[:80]}-{key[:32]}.so"


class Library:
    """Loaded library, unloaded when it is no longer referenced. Launch objects refer to it, and
    launches on the host are synchronous, so that none is running then.
    """

    def __init__(self, path: str, needs: Library | None) -> None:
        self.path = Path(path)
        self.symbols = ctypes.CDLL(path)
        self._needs = needs
        # Not at exit: the process unloads everything then, in its own order.
        weakref.finalize(self, _unload, self.symbols._handle).atexit = False

    def address(self, name: str) -> int:
        """Return the address of a symbol."""
        return ctypes.addressof(ctypes.c_char.in_dll(self.symbols, name))


def _unload(handle: int) -> None:
    import _ctypes

    _ctypes.dlclose(handle)


_libraries: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
_runtimes: list[Library] = []
"""Runtime libraries, never unloaded: every thread that launched a kernel has fibers in them."""
_loading = Lock()
"""Lock for all loads: a runtime must not be loaded twice."""


def load(unit: Unit) -> Library:
    """Return the library of `unit`, from this process, the cache or the compiler.

    Raises CompileError if the compiler rejects the source, TargetError if its output cannot be
    loaded, ResourceError if no folder can hold it.
    """
    with _loading:
        return _load(unit)


def _load(unit: Unit) -> Library:
    key = unit.key
    found = _libraries.get(key)
    if found is None:
        found = _libraries[key] = _loaded_somewhere(unit, key)
        if unit.needs is None:
            _runtimes.append(found)
    return found


def _loaded_somewhere(unit: Unit, key: str) -> Library:
    needs = _load(unit.needs) if unit.needs else None
    problems = []
    for folder in folders("host"):
        try:
            found = _loaded(unit, key, folder, needs)
        except OSError as problem:
            problems.append(f"{folder.path}: {problem.strerror or problem}")
            _log.info("%s: %s", unit.name, problems[-1])
            continue
        if problems:
            _warn(problems[0], str(folder.path))
        return found
    raise ResourceError(
        f"no place for compiled kernels of the CPU: {'; '.join(problems) or 'no folder'}. "
        "Make room, or name another folder in THUNDER_FUSER_CACHE_DIR or TMPDIR"
    )


@functools.cache
def _warn(problem: str, instead: str) -> None:
    warnings.warn(
        f"compiled kernels are lost when this process ends, for they are in {instead}: {problem}",
        RuntimeWarning,
        stacklevel=2,
    )


def _loaded(unit: Unit, key: str, folder: Folder, needs: Library | None) -> Library:
    """Load the library from `folder`, compiling it if missing; OSError if the folder fails."""
    name = unit.file_name(key)
    if there := _entry(unit, key, folder):
        try:
            found = _opened(folder.path / there, folder, needs)
            _log.info("%s is in the cache: %s", unit.name, found.path)
            return found
        except OSError as damage:  # not detected by the seal
            if is_passing(damage):
                raise
            _log.info("%s is made again: %s", there, damage)
            folder.discard(there)
            path = _compiled(unit, key, folder, needs)
    else:
        path = _made(unit, key, folder, needs)
    try:
        return _opened(path, folder, needs)
    except OSError as problem:
        folder.discard(name)
        if any(words in str(problem) for words in _FAULTY):
            raise unit.compiler.useless(
                f"makes a library that cannot be loaded: {problem}"
            ) from None
        raise


def _made(unit: Unit, key: str, folder: Folder, needs: Library | None) -> Path:
    """Compile `unit` into `folder`, unless another process has meanwhile; OSError if the disk is
    full.
    """
    with folder.turn(unit.file_name(key)):
        there = _entry(unit, key, folder)
        return folder.path / there if there else _compiled(unit, key, folder, needs)


def _entry(unit: Unit, key: str, folder: Folder) -> str | None:
    """Return the name of the library in `folder` that contains `unit`, or None."""
    name = unit.file_name(key)
    if folder.find(name, key) is not None:
        return name
    shared = folder.alias(name, key)
    return shared[0] if shared and folder.find(*shared) is not None else None


def is_cached(unit: Unit) -> bool:
    """True if this process or the cache has the library."""
    key = unit.key
    return key in _libraries or any(_entry(unit, key, folder) for folder in folders("host"))


def compile_as_one(units: Sequence[Unit], whole: Unit) -> None:
    """Compile `whole`, which contains the kernels of all `units`, and cache it for each of them,
    for `load` to find. Raises the errors of `load`, and OSError if the disk is full.
    """
    needs = load(whole.needs) if whole.needs else None
    folder, key = folder_to_write("host"), whole.key
    _made(whole, key, folder, needs)
    for unit in units:
        own = unit.key
        folder.keep_alias(unit.file_name(own), own, whole.file_name(key), key)


def _opened(path: Path, folder: Folder, needs: Library | None) -> Library:
    try:
        return Library(str(path), needs)
    except OSError as problem:
        if any(words in str(problem) for words in _FAULTY):
            raise
    # The folder is mounted noexec: load from memory. The loader takes files of equal name for one
    # library, so a link gives each its own name.
    memory = os.memfd_create(path.name)
    try:
        with open(memory, "wb", closefd=False) as file, folder.workspace() as work:
            file.write(path.read_bytes())
            file.flush()
            link = work / path.name
            link.symlink_to(f"/proc/self/fd/{memory}")
            return Library(str(link), needs)
    finally:
        os.close(memory)


# --- Compiling --------------------------------------------------------------------------------


def _compiled(unit: Unit, key: str, folder: Folder, needs: Library | None = None) -> Path:
    """Compile `unit` into `folder`; OSError if the disk is full."""
    name = unit.file_name(key)
    start = time.perf_counter()
    with folder.workspace() as work:
        _check_room(work)
        needed = [str(_needed(unit.needs, folder, needs, work))] if unit.needs else []
        source, output = work / "source.cpp", work / name
        source.write_text(unit.text, encoding="utf-8")
        answer = unit.compiler.run(
            [
                *(*unit.flags, f"-I{headers.template_dir()}", str(source), *needed),
                *("-o", str(output), f"-Wl,-soname,{name}", *unit.compiler.libraries),
            ],
            temporary=work,
        )
        if answer.returncode != 0:
            _check_room(work, answer.stderr)
            if end := end_of(answer):
                raise starved(unit.compiler.command, f"{end} at {unit.name}")
            unit.compiler.check(work)
            raise _rejection(unit, answer.stderr)
        if not output.is_file() or not output.stat().st_size:
            _check_room(work, answer.stderr)
            raise unit.compiler.useless("succeeds and writes no library")
        path = folder.publish(output, name, key)
    _log.info("%s compiled in %.2f s: %s", unit.name, time.perf_counter() - start, path)
    return path


def _needed(unit: Unit, folder: Folder, loaded: Library | None, work: Path) -> Path:
    """Copy a library to link with into `work`, where no process evicts it meanwhile: the loaded one
    if its file can still be read, else a cached or new one.
    """
    copy = work / "needed.so"
    key = unit.key
    content: bytes | None = None
    if loaded is not None:
        with contextlib.suppress(OSError):  # its folder may be gone, unmounted, or another file
            content = loaded.path.read_bytes()
    if content is None:
        content = folder.find(unit.file_name(key), key)
    if content is None:
        return Path(shutil.copyfile(_made(unit, key, folder, None), copy))
    copy.write_bytes(content)
    return copy


def _check_room(work: Path, messages: str = "") -> None:
    """Raise OSError if the disk is full, or the compiler's messages say so."""
    found = os.statvfs(work)
    full = found.f_bavail * found.f_frsize < _FULL or (found.f_files and not found.f_favail)
    if full or any(words in messages for words in _NO_ROOM):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work))


def _rejection(unit: Unit, messages: str) -> CompileError:
    source = save_rejected(unit.name, unit.text)
    return CompileError(
        f"{unit.compiler.command[0]} rejected {unit.name}: {first_error(messages)}\n"
        f"The source is in {source or 'CompileError.log'}, the whole log in CompileError.log: "
        f"{REPORT}",
        source=source,
        log=messages,
    )


@functools.cache
def _processor() -> str:
    """Model and instruction sets of the CPU, on which -march=native depends."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return repr(os.uname())
    return "\n".join(line for line in first.splitlines() if line.startswith(wanted))
