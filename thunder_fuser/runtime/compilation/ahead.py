"""Ahead-of-time compilation: programs of one trace are compiled together, in parallel over cores.

Starting a compiler and reading headers costs as much as one or two kernels. Programs are therefore
divided among as many compilations as there are cores, each of which compiles its share as one
program (NVRTC releases the interpreter lock, host compilers are subprocesses). The results are
cached under the key of each program, where its own compilation finds them: the code that runs does
not depend on what it was compiled with, and a failure here is harmless.
"""

from __future__ import annotations

import contextvars
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.log import status
from thunder_fuser.runtime.target import target_for

_log = logging.getLogger(__name__)

Program = Sequence[Kernel]

_LEAST = 2
"""Fewest programs per compilation."""


def compile_ahead(programs: Sequence[Program], device: torch.device) -> None:
    """Compile the programs that are not cached, into the cache. Failures are left to the program's
    own compilation, which reports them.
    """
    is_known, compile_as_one = _compiler_for(device)
    new = [p for p in _distinct(programs) if not is_known(p)]
    if len(new) < _LEAST:
        return
    with status("compiling", total=len(new)) as progress:
        progress.step(", ".join(kernel.name for program in new for kernel in program))
        shared = _divided(new, min(_cores(), len(new) // _LEAST))

        def run(share: Sequence[Program]) -> None:
            try:
                compile_as_one(share)
            except Exception as error:
                _log.info("%d programs are compiled apart: %s", len(share), error)

        # Workers use the options of the requesting thread.
        runs = [(contextvars.copy_context(), share) for share in shared]
        with ThreadPoolExecutor(len(runs)) as pool:
            for ran in [pool.submit(context.run, run, share) for context, share in runs]:
                ran.result()


def _compiler_for(
    device: torch.device,
) -> tuple[Callable[[Program], bool], Callable[[Sequence[Program]], None]]:
    """Return `is_cached` and `compile_as_one` of the target of `device`."""
    if device.type == "cpu":
        from thunder_fuser.runtime.host import build

        return build.is_cached, build.compile_as_one
    from thunder_fuser.runtime.cuda import nvrtc

    arch = target_for(device).device_info(device).arch
    return lambda p: nvrtc.is_cached(p, arch), lambda share: nvrtc.compile_as_one(share, arch)


def _distinct(programs: Sequence[Program]) -> list[Program]:
    """Drop programs that share a kernel name with an earlier one."""
    names: set[str] = set()
    found: list[Program] = []
    for program in programs:
        own = {kernel.name for kernel in program}
        if own and names.isdisjoint(own):
            names |= own
            found.append(program)
    return found


def _divided(programs: Sequence[Program], count: int) -> list[list[Program]]:
    """Divide programs into `count` shares with about equal source length, longest first."""
    lengths = {id(p): sum(len(kernel.source) for kernel in p) for p in programs}
    shares: list[list[Program]] = [[] for _ in range(count)]
    for program in sorted(programs, key=lambda p: (-lengths[id(p)], p[0].name)):
        min(shares, key=lambda share: sum(lengths[id(p)] for p in share)).append(program)
    return shares


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
