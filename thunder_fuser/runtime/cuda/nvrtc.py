"""Compilation of kernels to cubins by NVRTC, with a disk cache.

All kernels of a plan are one NVRTC program, because starting one costs as much as a kernel, and
programs that are needed together are compiled as one (`runtime/compilation/ahead.py`).
Nothing here needs a GPU or a driver, so that every kernel can be compiled, and its registers and
spills read, on any machine.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from thunder_fuser.codegen import headers
from thunder_fuser.codegen.kernel import Kernel, program_text
from thunder_fuser.errors import REPORT, CompileError, ResourceError, TargetError
from thunder_fuser.log import status
from thunder_fuser.runtime.compilation.cache import key_of
from thunder_fuser.runtime.compilation.failures import save_rejected
from thunder_fuser.runtime.cuda import cubin_cache

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a kernel as reported by ptxas, per thread except for `shared_bytes`.

    `shared_bytes` is static shared memory per block; `stack_bytes` is local memory per thread, for
    spilled registers and for arrays with run-time indices.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int

    @property
    def spills(self) -> bool:
        """True if registers are spilled."""
        return self.spill_store_bytes + self.spill_load_bytes > 0

    def __str__(self) -> str:
        return (
            f"{self.registers} registers, {self.stack_bytes} B of stack, "
            f"{self.spill_store_bytes} B spilled, {self.shared_bytes} B of static shared memory"
        )


@dataclass(frozen=True, slots=True)
class Cubin:
    """Compiled program: machine code for `arch`, and the resources of each kernel by name."""

    image: bytes
    arch: str
    resources: Mapping[str, Resources]


def compile_cubin(kernels: Sequence[Kernel], arch: str) -> Cubin:
    """Compile `kernels` as one program for `arch` ("sm_90"), or load it from the cache.

    Raises CompileError if NVRTC rejects the source, TargetError without NVRTC or if it cannot
    compile for `arch`.
    """
    arch = nearest_arch(arch)
    text = program_text(kernels)
    headers = device_headers()
    key = _key(text, headers, arch)
    entry = cubin_cache.load(key)
    where = "in the cache" if entry is not None else "compiled"
    if entry is None:
        with status("compiling", total=len(kernels)), cubin_cache.turn(key):
            entry = cubin_cache.load(key)
            if entry is None:
                entry = _compiled(kernels, headers, arch)
                cubin_cache.store(key, *entry)
    image, log = entry
    resources = parse_resources(log)
    for kernel in kernels:
        _log.info("%s for %s, %s: %s", kernel.name, arch, where, resources[kernel.name])
    return Cubin(image, arch, {kernel.name: resources[kernel.name] for kernel in kernels})


def _compiled(
    kernels: Sequence[Kernel], headers: Mapping[str, str], arch: str
) -> tuple[bytes, str]:
    """Compile; the cubin and the log. If kernels spill, other ptxas options and launch bounds are
    tried.
    """
    given = list(kernels)
    while True:
        text = program_text(given)
        image, log = _run_nvrtc(given, text, headers, arch)
        if _spilled_bytes(log) and _is_worth_more_effort(given, log):
            for option in _FEWER_OR_MORE:
                spilled = _spilled_bytes(log)
                if 0 < spilled <= _FEW_BYTES:
                    other = _run_nvrtc(given, text, headers, arch, option)
                    image, log = other if _spilled_bytes(other[1]) < spilled else (image, log)
        roomier = with_room(given, parse_resources(log)) if _spilled_bytes(log) else given
        if roomier == given:
            return image, log
        given = roomier


def _is_worth_more_effort(kernels: Sequence[Kernel], log: str) -> bool:
    """True if other ptxas options should be tried before other launch bounds: if a kernel requests
    an occupancy, or no other launch bounds are left.
    """
    asks = any(kernel.min_blocks_hint for kernel in kernels)
    return asks or with_room(kernels, parse_resources(log)) == kernels


def is_cached(kernels: Sequence[Kernel], arch: str) -> bool:
    """True if the cache has a program of these kernels."""
    key = _key(program_text(kernels), device_headers(), nearest_arch(arch))
    return cubin_cache.load(key) is not None


def compile_as_one(programs: Sequence[Sequence[Kernel]], arch: str) -> None:
    """Compile programs, whose kernel names must be distinct, as a single one, and cache it for each
    of them, for `compile_cubin` to find.

    Programs with spilling kernels are left out, because they need other launch bounds. Raises the
    errors of `compile_cubin`.
    """
    arch = nearest_arch(arch)
    headers = device_headers()
    kernels = [kernel for program in programs for kernel in program]
    text = program_text(kernels)
    # Not the key of `compile_cubin` for all kernels, which would change launch bounds on spills.
    whole = key_of("as one", _key(text, headers, arch))
    with cubin_cache.turn(whole):
        entry = cubin_cache.load(whole)
        if entry is None:
            entry = _run_nvrtc(kernels, text, headers, arch)
            cubin_cache.store(whole, *entry)
    resources = parse_resources(entry[1])
    fit = [p for p in programs if not any(resources[kernel.name].spills for kernel in p)]
    for program in fit:
        cubin_cache.store_alias(_key(program_text(program), headers, arch), whole)


def _key(text: str, headers: Mapping[str, str], arch: str) -> str:
    return key_of(
        text,
        headers,
        _flags(arch),
        (_PLAIN, _ROOMY, *_FEWER_OR_MORE),
        nvrtc_version(),
        _nvrtc_build(),
    )


def with_room(kernels: Sequence[Kernel], found: Mapping[str, Resources]) -> list[Kernel]:
    """Relax the launch bounds of kernels that spill: drop the requested occupancy, or, if there is
    none, give a block all registers of a multiprocessor.
    """
    return [_roomier(kernel) if found[kernel.name].spills else kernel for kernel in kernels]


def _roomier(kernel: Kernel) -> Kernel:
    if kernel.min_blocks_hint:
        return replace(kernel, source=_ASKING.sub(_PLAIN, kernel.source), min_blocks_hint=0)
    return replace(kernel, source=_BOUNDS.sub(_ROOMY, kernel.source))


def device_headers() -> dict[str, str]:
    """Return the text of each header that CUDA code may include, by name."""
    # The other files of the folder replace CUDA under a host compiler.
    names = [name for name in headers.template_names() if name.endswith(".cuh")]
    return {name: headers.read(name) for name in names}


# --- NVRTC ------------------------------------------------------------------------------------


@functools.cache
def nvrtc() -> Any:
    """Return the bindings of NVRTC with its library loaded; TargetError without NVRTC."""
    try:
        from cuda.bindings import nvrtc as bindings

        bindings.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise TargetError(
            f"kernels for CUDA cannot be compiled, NVRTC is not available: {error}. "
            "Install a build of torch for CUDA 12.8 or later, or `pip install nvidia-cuda-nvrtc`"
        ) from error
    return bindings


@functools.cache
def supported_archs() -> tuple[str, ...]:
    """Return the architectures that NVRTC supports, oldest first: ("sm_75", "sm_80", ...)."""
    _, numbers = nvrtc().nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in numbers)


def nvrtc_version() -> str:
    """Return the version of the installed NVRTC, such as "13.0"."""
    _, major, minor = nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


@functools.cache
def _nvrtc_build() -> str:
    """Return the full version of NVRTC's wheel, with its patch level; "" without a wheel."""
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return ""


def nearest_arch(arch: str) -> str:
    """Return the architecture to compile for on a device of `arch`: itself if NVRTC supports it.

    Machine code runs on later minor versions of its major one, so a device that is newer than NVRTC
    gets the nearest older architecture.  Raises TargetError if there is none.
    """
    known = supported_archs()
    if arch.rstrip("af") in known:
        return arch
    older = [other for other in known if other[:-1] == arch[:-1] and other < arch]
    if not older:
        raise TargetError(
            f"NVRTC {nvrtc_version()} cannot compile for {arch}, only for {', '.join(known)}; "
            "install an nvidia-cuda-nvrtc that can, or leave the operations on it to torch"
        )
    return older[-1]


_BOUNDS, _ROOMY = re.compile(r"__launch_bounds__\((\d+)\)"), r"__launch_bounds__(\1, 1)"
"""Launch bounds, and with one resident block per multiprocessor as the minimum.  By default ptxas
spills a register or two in one kernel of fifty to fit another block; applied to all kernels, the
minimum would halve the resident blocks."""
_ASKING, _PLAIN = re.compile(r"__launch_bounds__\((\d+), \d+\)"), r"__launch_bounds__(\1)"
"""Launch bounds with a minimum of resident blocks per multiprocessor, and without it."""
_FEWER_OR_MORE = ("--register-usage-level=2", "--register-usage-level=8")
"""ptxas options for fewer or more rematerialised values: if a register or two spill, one of them
may avoid the spills."""
_FEW_BYTES = 32
"""Most spilled bytes, stores and loads, for which other ptxas options are tried: four registers."""


def _flags(arch: str, *ptxas: str) -> list[bytes]:
    # --minimal: NVRTC omits declarations of textures and the CUDA runtime, 3 ms per program.
    flags = [f"-arch={arch}", "--std=c++17", "--minimal", *_without_cache()]
    flags += [f"--ptxas-options={option}" for option in ("-v", *ptxas)]
    return [flag.encode() for flag in flags]


@functools.cache
def _without_cache() -> tuple[str, ...]:
    """Return the option that disables NVRTC's own cache, which it shares with the driver: it has no
    logs, so that resources would be unknown. () if NVRTC has no such cache.
    """
    api, option = nvrtc(), "--no-cache"
    _, program = api.nvrtcCreateProgram(b"", b"nothing.cu", 0, [], [])
    try:
        (status,) = api.nvrtcCompileProgram(program, 1, [option.encode()])
        return () if status == api.nvrtcResult.NVRTC_ERROR_INVALID_OPTION else (option,)
    finally:
        api.nvrtcDestroyProgram(program)


def _run_nvrtc(
    kernels: Sequence[Kernel], text: str, headers: Mapping[str, str], arch: str, *ptxas: str
) -> tuple[bytes, str]:
    """Run NVRTC; the cubin and the log.  Headers are passed as text, so that no path is in code or
    cache.
    """
    flags = _flags(arch, *ptxas)
    api = nvrtc()
    success = api.nvrtcResult.NVRTC_SUCCESS
    created, program = api.nvrtcCreateProgram(
        text.encode(),
        b"kernels.cu",
        len(headers),
        [source.encode() for source in headers.values()],
        [name.encode() for name in headers],
    )
    if created == api.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY:
        raise _starved(kernels)
    if created != success:
        raise TargetError(
            f"NVRTC {nvrtc_version()} does not start: {created.name}; reinstall it (pip install "
            "--force-reinstall nvidia-cuda-nvrtc)"
        )
    try:
        (compiled,) = api.nvrtcCompileProgram(program, len(flags), flags)
        log = _read(program, api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog)
        log_text = log.rstrip(b"\0").decode(errors="replace")
        if compiled == api.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY:
            raise _starved(kernels)
        if compiled != success:
            raise _rejection(kernels, text, arch, log_text or compiled.name)
        return _read(program, api.nvrtcGetCUBINSize, api.nvrtcGetCUBIN), log_text
    finally:
        api.nvrtcDestroyProgram(program)


def _read(program: Any, size: Any, get: Any) -> bytes:
    _, count = size(program)
    buffer = bytearray(count)
    get(program, buffer)
    return bytes(buffer)


def _starved(kernels: Sequence[Kernel]) -> ResourceError:
    names = ", ".join(kernel.name for kernel in kernels)
    return ResourceError(
        f"NVRTC {nvrtc_version()} has no memory to compile {names}; free memory of the host, "
        "compile in fewer processes at a time, and call it again"
    )


def _rejection(kernels: Sequence[Kernel], text: str, arch: str, log: str) -> CompileError:
    first = re.search(r"^.*\berror\b.*$", log, re.MULTILINE)
    source = save_rejected(kernels[0].name, text)
    names = ", ".join(kernel.name for kernel in kernels)
    return CompileError(
        f"NVRTC {nvrtc_version()} rejected {names} for {arch}: "
        f"{first.group(0).strip() if first else log.strip()}\n"
        f"The source is in {source or 'CompileError.log'}, the whole log in CompileError.log: "
        f"{REPORT}",
        source=source,
        log=log,
    )


# --- Resources reported by ptxas ---------------------------------------------------------------

_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_NUMBERS = {
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


def parse_resources(log: str) -> dict[str, Resources]:
    """Parse the resources of each kernel from the log of `ptxas -v`; missing ones are 0."""
    # Text before the first kernel, then alternating name and text.
    _, *parts = _FUNCTION.split(log)
    return {name: _resources(report) for name, report in zip(parts[::2], parts[1::2], strict=True)}


def _spilled_bytes(log: str) -> int:
    return sum(
        found.spill_store_bytes + found.spill_load_bytes for found in parse_resources(log).values()
    )


def _resources(report: str) -> Resources:
    found = {field: pattern.search(report) for field, pattern in _NUMBERS.items()}
    return Resources(**{field: int(match[1]) if match else 0 for field, match in found.items()})
