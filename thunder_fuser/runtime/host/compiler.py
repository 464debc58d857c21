"""Selection and invocation of the host's C++ compiler.

In order of preference: the `cxx` option, `$CXX`, g++, clang++, and the compiler in the ziglang
wheel, for machines where only Python packages can be installed. g++ gives the fastest kernels: it
alone can call glibc's SIMD math functions without giving up IEEE arithmetic
(csrc_templates/host/libm.h), and it shares OpenMP threads with torch.
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
from thunder_fuser.errors import ResourceError, TargetError
from thunder_fuser.runtime.scarcity import end_of, is_passing

Family = Literal["gcc", "clang", "zig"]

_FLAGS = (
    *("-std=gnu++17", "-shared", "-fPIC", "-fvisibility=hidden", "-DTF_HOST"),
    # Kernels reinterpret memory and read neither errno nor floating-point exceptions. No flag that
    # changes the meaning of NaN, infinity or signed zero.
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math"),
    "-fopenmp-simd",
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """Working C++ compiler.

    version    full output of --version, for cache keys
    chosen_by  setting that selected it, for error messages: "the cxx option", "$CXX" or ""
    """

    command: tuple[str, ...]
    family: Family
    version: str
    chosen_by: str = ""

    @property
    def name(self) -> str:
        """First line of the version."""
        return next(iter(self.version.splitlines()), "a compiler that does not tell its version")

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of every translation unit."""
        found = (*_FLAGS, *_native(self.family), *_FAMILY_FLAGS[self.family])
        return (*found, *self._no_gathers)

    @property
    def _no_gathers(self) -> tuple[str, ...]:
        """g++ flags that disable gathers. g++ 12.2 turns predicated loads into masked gathers
        (`-mtune` of znver3, haswell) with wrong elements, as in an average pool's gradient.
        """
        number = re.search(r"\b(\d+)\.\d+\.\d+", self.version)
        if self.family != "gcc" or os.uname().machine != "x86_64" or number is None:
            return ()
        every = ("use_gather_2parts", "use_gather_4parts", "use_gather")
        names = every if int(number[1]) >= 12 else every[-1:]
        return (f"-mtune-ctrl={','.join(f'^{name}' for name in names)}",)

    @property
    def runtime_flags(self) -> tuple[str, ...]:
        """Additional flags of the runtime: OpenMP if it is torch's OpenMP, as with g++."""
        return ("-fopenmp",) if self.family == "gcc" else ("-pthread",)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Link flags for the C++ library, which a C compiler omits: `CXX=gcc` is common."""
        names = [Path(word).name for word in self.command]
        is_c = any(_C_COMPILER.fullmatch(name) for name in names)
        return ("-lstdc++",) if is_c and not any("++" in name for name in names) else ()

    def run(
        self, arguments: list[str], temporary: Path | None = None, given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run the compiler with messages in English and return the completed process. `temporary`
        is its folder for temporary files, `given` its standard input. TargetError if it does not
        start; ResourceError if the system cannot start it now.
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
            if is_passing(error):
                raise starved(self.command, f"does not start ({error})") from error
            raise self.useless(f"does not start: {error}") from error

    def check(self, work: Path) -> None:
        """Raise TargetError if a library of nothing but headers is not made in `work` either: the
        fault is in the command's own flags or in its installation, not in a kernel.
        """
        written = ["-o", str(work / "check.so"), *self.libraries]
        answer = self.run([*self.flags, "-x", "c++", "-", *written], work, given=_HEADERS)
        if end := end_of(answer):
            raise starved(self.command, end)
        if answer.returncode != 0:
            why = first_error(answer.stderr) or f"it ends with status {answer.returncode}"
            raise self.useless(f"makes no library: {why}")

    def useless(self, problem: str) -> TargetError:
        """Return the TargetError that this compiler cannot be used, because of `problem`."""
        return TargetError(
            f"no C++ compiler for kernels on the CPU: {shlex.join(self.command)} {problem}; "
            + _remedy(self.chosen_by)
        )


def starved(command: tuple[str, ...], what: str) -> ResourceError:
    """Return the error that the system did not let a compiler run."""
    return ResourceError(
        f"a kernel for the CPU is not compiled: {shlex.join(command)} {what}; free memory, disk "
        "and file descriptors (ulimit -a has the limits), compile in fewer processes at a time, "
        "and call it again"
    )


def first_error(messages: str) -> str:
    """Return the line of a compiler's messages that says what is wrong: the first error, or the
    first line if only the linker failed.
    """
    lines = messages.strip().splitlines() or [""]
    errors = (line for line in lines if "error" in line and not line.startswith("collect2"))
    return next(errors, lines[0])


_HEADERS = "#include <stdint.h>\n#include <sys/mman.h>\n#include <thread>\n"

_C_COMPILER = re.compile(r"(.*-)?(gcc|cc|clang)(-[\d.]+)?")

# Products are contracted with additions, as on a GPU; clang contracts `mul_rn` unless told to look
# (csrc_templates/host/libm.h).
_CLANG_FLAGS = ("-ferror-limit=5", "-ffp-contract=fast-honor-pragmas")
_FAMILY_FLAGS: dict[Family, tuple[str, ...]] = {
    "gcc": (
        "-fmax-errors=5",
        "-ffp-contract=fast",
        # Keeps selects among lanes: jump threading of `v < 4` through `v < 8` makes branches, and
        # loops with branches are not vectorised.
        "-fno-thread-jumps",
        # Keeps selects before what depends on them: partial redundancy elimination makes
        # `(c ? x : 0) != 0` a select among truth values, which has no SIMD form in AVX-512.
        "-fno-tree-pre",
        # Keeps loops that copy or clear register arrays: as memcpy or memset they are expanded in
        # pieces chosen by `-mtune`, such as 32 bytes with AVX-512. The vector loop behind it reads
        # 64, and store forwarding does not work across two stores.
        "-fno-tree-loop-distribute-patterns",
        # Peels short loops over lanes completely, so that their arrays are in registers.
        *("-fpeel-loops", "--param=max-completely-peeled-insns=2000"),
        # Keeps sine and cosine as two calls: there is no SIMD version of sincos.
        *("-fno-builtin-sin", "-fno-builtin-cos", "-fno-builtin-sinf", "-fno-builtin-cosf"),
    ),
    "clang": _CLANG_FLAGS,
    # zig enables UBSan by default.
    "zig": (*_CLANG_FLAGS, "-fno-sanitize=undefined"),
}


def _native(family: Family) -> tuple[str, ...]:
    arm = os.uname().machine in ("aarch64", "arm64")
    if arm:
        return ("-march=native",) if family == "zig" else ("-mcpu=native",)
    # By default compilers use only half of each AVX-512 register; without AVX-512 the preference
    # has no effect.
    return ("-march=native", "-mprefer-vector-width=512")


def find_compiler() -> Compiler:
    """Return the compiler for the current options; TargetError if there is none."""
    variable = os.environ.get("CXX", "").strip()
    return _find(current().cxx, variable or None, os.environ.get("PATH"))


@functools.cache
def _find(option: str | None, variable: str | None, path: str | None) -> Compiler:
    # An explicitly chosen compiler is used or reported, never silently replaced.
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
    """Return the compiler behind `command`, or a description of the problem."""
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
        if is_passing(error):
            raise starved(command, f"does not start ({error})") from error
        return f"{name} does not run ({error})"
    if answer.returncode != 0:
        if end := end_of(answer):
            raise starved(command, f"--version {end}")
        return f"{name} --version fails with status {answer.returncode}"
    family: Family = "clang" if "clang" in answer.stdout else "gcc"
    if "ziglang" in command or Path(command[0]).name == "zig":
        family = "zig"
    return Compiler(command, family, answer.stdout, chosen_by)
