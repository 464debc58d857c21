"""The host's C++ compiler: which one, and how it is called.

In order of preference: the `cxx` option, `$CXX`, g++, clang++, and the compiler in the ziglang
wheel, which makes the host target work on a machine where nothing can be installed but Python
packages. g++ gives the fastest kernels: it alone can call glibc's SIMD versions of the math
functions without giving up IEEE arithmetic (csrc_templates/host/libm.h), and it shares OpenMP's
threads with torch.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from thunder_fuser.config import current
from thunder_fuser.errors import TargetError

Family = Literal["gcc", "clang", "zig"]

_FLAGS = (
    *("-std=gnu++17", "-shared", "-fPIC", "-fvisibility=hidden", "-DTF_HOST"),
    # Kernels reinterpret memory; nobody reads errno or floating point exceptions; a*b+c is one
    # operation, as on a GPU. Nothing that changes the meaning of NaN, infinity or signed zero.
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    "-fopenmp-simd",
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that answers. `version` is what it says of itself, in full, for cache keys;
    `chosen_by` what the user chose it with, or "".
    """

    command: tuple[str, ...]
    family: Family
    version: str
    chosen_by: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """What every translation unit is compiled with."""
        found = (*_FLAGS, *_native(self.family), *_FAMILY_FLAGS[self.family])
        return (*found, *self._no_gathers)

    @property
    def _no_gathers(self) -> tuple[str, ...]:
        """Flags without which g++ 12.2 makes masked gathers of loads under tests (`-mtune` of a
        znver3, a haswell), whose lanes got the wrong elements: an average pool's gradient.
        """
        number = re.search(r"\b(\d+)\.\d+\.\d+", self.version)
        if self.family != "gcc" or os.uname().machine != "x86_64" or number is None:
            return ()
        every = ("use_gather_2parts", "use_gather_4parts", "use_gather")
        names = every if int(number[1]) >= 12 else every[-1:]
        return (f"-mtune-ctrl={','.join(f'^{name}' for name in names)}",)

    @property
    def runtime_flags(self) -> tuple[str, ...]:
        """What the runtime is compiled with besides: OpenMP proper, where torch has the same."""
        return ("-fopenmp",) if self.family == "gcc" else ("-pthread",)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What a C++ library is linked with where the command is that of a C compiler, which
        leaves it out. `CXX=gcc` is often seen.
        """
        names = [Path(word).name for word in self.command]
        is_c = any(_C_COMPILER.fullmatch(name) for name in names)
        return ("-lstdc++",) if is_c and not any("++" in name for name in names) else ()

    def run(
        self, arguments: list[str], temporary: Path | None = None, given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Call the compiler; its messages, in English, are in `stderr`, and its own temporary
        files in `temporary`; `given` is what it reads for a file of the name `-`. TargetError if
        it does not start.
        """
        environment = {**os.environ, "LC_ALL": "C"}
        if temporary is not None:
            environment["TMPDIR"] = str(temporary)
        try:
            return subprocess.run(
                [*self.command, *arguments],
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=environment,
            )
        except OSError as error:
            raise self.useless(f"does not start: {error}") from error

    def useless(self, problem: str) -> TargetError:
        """What to raise when no kernel can be compiled by this."""
        return TargetError(
            f"no C++ compiler for kernels on the CPU: {shlex.join(self.command)} {problem}; "
            + _remedy(self.chosen_by)
        )


_C_COMPILER = re.compile(r"(.*-)?(gcc|cc|clang)(-[\d.]+)?")

_FAMILY_FLAGS: dict[Family, tuple[str, ...]] = {
    "gcc": (
        "-fmax-errors=5",
        # A select among lanes stays one: threading `v < 4` through `v < 8` makes branches, and
        # loops with branches are not vectorised.
        "-fno-thread-jumps",
        # A loop that copies or clears registers stays one: as a memcpy or memset it is expanded in
        # pieces of what `-mtune` thinks best, such as 32 bytes where there is AVX-512. The vector
        # loop behind it reads 64, which no core forwards from two stores.
        "-fno-tree-loop-distribute-patterns",
        # A lane loop of a few registers is written out: as a loop it has its arrays in memory.
        *("-fpeel-loops", "--param=max-completely-peeled-insns=2000"),
        # Sine and cosine stay two calls: there is no SIMD version of sincos.
        *("-fno-builtin-sin", "-fno-builtin-cos", "-fno-builtin-sinf", "-fno-builtin-cosf"),
    ),
    "clang": ("-ferror-limit=5",),
    # zig checks for undefined behaviour unless told not to.
    "zig": ("-ferror-limit=5", "-fno-sanitize=undefined"),
}


def _native(family: Family) -> tuple[str, ...]:
    arm = os.uname().machine in ("aarch64", "arm64")
    if arm:
        return ("-march=native",) if family == "zig" else ("-mcpu=native",)
    # Without being told, compilers leave half of each AVX-512 register empty; elsewhere the wish
    # for wide vectors changes nothing.
    return ("-march=native", "-mprefer-vector-width=512")


def find_compiler() -> Compiler:
    """The compiler to use under the options in force; TargetError if there is none."""
    variable = os.environ.get("CXX", "").strip()
    return _find(current().cxx, variable or None, os.environ.get("PATH"))


@functools.cache
def _find(option: str | None, variable: str | None, path: str | None) -> Compiler:
    # A compiler that was asked for is used or reported, never silently replaced.
    chosen_by = "the cxx option" if option else "$CXX" if variable else ""
    problems = []
    for command in _candidates(option or variable, chosen_by):
        found = _probe(command, chosen_by)
        if isinstance(found, Compiler):
            return found
        problems.append(found)
    problem = "; ".join(problems)
    raise TargetError(f"no C++ compiler for kernels on the CPU: {problem}; {_remedy(chosen_by)}")


def _candidates(chosen: str | None, chosen_by: str) -> list[tuple[str, ...]]:
    if chosen:
        try:
            return [tuple(shlex.split(chosen))]
        except ValueError as error:
            raise TargetError(
                f"no C++ compiler for kernels on the CPU: {chosen_by} is {chosen!r}, which is no "
                f"command ({error}); {_remedy(chosen_by)}"
            ) from error
    candidates: list[tuple[str, ...]] = [("g++",), ("clang++",)]
    if importlib.util.find_spec("ziglang"):
        candidates.append((sys.executable, "-m", "ziglang", "c++"))
    return candidates


def _remedy(chosen_by: str) -> str:
    if chosen_by:
        return f"correct {chosen_by}, or remove it to have one found"
    return (
        "install one with `apt install g++`, `dnf install gcc-c++` or `pip install ziglang`, "
        "or name one in THUNDER_FUSER_CXX"
    )


def _probe(command: tuple[str, ...], chosen_by: str) -> Compiler | str:
    """The compiler behind `command`, or why there is none."""
    name = shlex.join(command)
    if not command or not command[0]:
        return "an empty name was not found"
    if shutil.which(command[0]) is None:
        is_there = Path(command[0]).exists()
        return f"{name} {'is no program that may be run' if is_there else 'was not found'}"
    try:
        answer = subprocess.run(
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name} does not run ({error})"
    if answer.returncode != 0:
        return f"{name} --version fails with status {answer.returncode}"
    family: Family = "clang" if "clang" in answer.stdout else "gcc"
    if "ziglang" in command or Path(command[0]).name == "zig":
        family = "zig"
    return Compiler(command, family, answer.stdout, chosen_by)
