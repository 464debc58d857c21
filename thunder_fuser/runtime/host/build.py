"""Host programs: translation units for the C++ compiler, from kernel text.

A program is the kernels' own text plus, per kernel, the function through which the runtime
enters it (csrc_templates/host/abi.h). It links against the runtime library, which is built from
csrc_templates/host the same way. `library.py` compiles, caches and loads both.

Sanitizer variants exist for tests. ASan and TSan have to be loaded before Python: start it with
LD_PRELOAD=$(g++ -print-file-name=libasan.so).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from thunder_fuser.codegen.kernel import Kernel, distinct_texts, header_text
from thunder_fuser.config import current
from thunder_fuser.runtime.host import library
from thunder_fuser.runtime.host.abi import declare
from thunder_fuser.runtime.host.compiler import find_compiler
from thunder_fuser.runtime.host.library import Library, Unit, load

Sanitizer = Literal["address", "undefined", "thread"]
Optimization = Literal["-O1", "-O2"]

_RUNTIME_FILES = (
    *("context.cpp", "worker.cpp", "schedule.cpp", "collectives.cpp"),
    *("launch.cpp", "guard.cpp"),
)
_KERNEL_FLAGS: dict[Sanitizer | None, tuple[str, ...]] = {
    # Integer elements of tensors wrap around; index overflow is an error, which UBSan finds.
    None: ("-fwrapv",),
    "address": ("-fsanitize=address", "-fsanitize-recover=address", "-g1"),
    "undefined": ("-fsanitize=undefined", "-g1"),
    "thread": ("-fsanitize=thread", "-g1", "-DTF_TSAN"),
}
_CHECKS = ("-DTF_CHECKS",)
# The runtime synchronises threads and tells ThreadSanitizer so: it must not be instrumented itself.
_RUNTIME_FLAGS: dict[Sanitizer | None, tuple[str, ...]] = {
    None: (),
    "address": ("-fsanitize=address", "-g1"),
    "undefined": (),
    "thread": ("-DTF_TSAN",),
}


@dataclass(frozen=True, slots=True)
class Program:
    """Compiled kernels, loaded as long as this object lives, and the runtime that runs them."""

    library: Library
    runtime: ctypes.CDLL

    def kernel_address(self, kernel: Kernel) -> int:
        """Return the address of the `tf_kernel` of `kernel`."""
        return self.library.address(f"{kernel.name}__kernel")


def build(
    kernels: Sequence[Kernel],
    sanitizer: Sanitizer | None,
    checks: bool,
    optimization: Optimization = "-O2",
) -> Program:
    """Compile and load `kernels`, or load them from the cache; `checks` enables TF_ASSERT.

    Raises TargetError without a compiler, CompileError if it rejects the source.
    """
    unit = _unit(kernels, sanitizer, checks, optimization)
    # The runtime first: the program refers to it by name and needs it loaded.
    assert unit.needs is not None
    runtime_library = declare(load(unit.needs).symbols)
    return Program(load(unit), runtime_library)


def is_cached(kernels: Sequence[Kernel]) -> bool:
    """True if `build` finds these kernels in the cache under the current options."""
    return library.is_cached(_unit(kernels, None, current().host_debug))


def compile_as_one(programs: Sequence[Sequence[Kernel]]) -> None:
    """Compile programs, whose kernel names must be distinct, as a single one for `build` to find.

    Raises the errors of `build`, and OSError if the disk is full.
    """
    checks = current().host_debug
    whole = [kernel for program in programs for kernel in program]
    units = [_unit(program, None, checks) for program in programs]
    library.compile_as_one(units, _unit(whole, None, checks))


def _unit(
    kernels: Sequence[Kernel],
    sanitizer: Sanitizer | None,
    checks: bool,
    optimization: Optimization = "-O2",
) -> Unit:
    compiler = find_compiler()
    runtime = Unit(
        name="runtime",
        text="".join(f'#include "host/{name}"\n' for name in _RUNTIME_FILES),
        flags=(*compiler.flags, *compiler.runtime_flags, "-O2", *_RUNTIME_FLAGS[sanitizer]),
        compiler=compiler,
    )
    return Unit(
        name=kernels[0].name,
        text=host_text(kernels),
        flags=(*compiler.flags, optimization, *_KERNEL_FLAGS[sanitizer], *_CHECKS * checks),
        compiler=compiler,
        needs=runtime,
    )


# --- Source text ------------------------------------------------------------------------------


def host_text(kernels: Sequence[Kernel]) -> str:
    """Return the translation unit for the host compiler.

    Compiler messages and sanitizers refer to a kernel's lines as <name>.cu, from its first line on.
    """
    # The shim comes first: NVRTC has CUDA's declarations built in, so a kernel may include nothing.
    parts = ['#include "host/shim.h"', header_text(kernels)]
    for kernel in distinct_texts(kernels):
        parts.append(_opening(kernel))
        parts.append(f'#line 1 "{kernel.name}.cu"\n{kernel.source.rstrip()}\n')
        parts.append(f'#line 1 "{kernel.name} (entry)"\n{_entry(kernel)}')
    return "\n".join(parts)


def _opening(kernel: Kernel) -> str:
    """Return macros that turn the kernel into a function with the thread it runs as a parameter.

    Threads that never synchronise run in one loop. The compiler keeps an argument of an inlined
    function in registers and hoists values that depend only on the block out of the loop;
    thread-local memory it would read again for every thread.
    """
    name = kernel.name
    return (
        f"#define {name}(...) {name}__body(const tf_thread* const tf_own, ##__VA_ARGS__)\n"
        "#define tf_self tf_own"
    )


# g++ 12 does not align the stack of a leaf function if it accesses an aligned array only through
# registers other than the stack pointer (GCC's PR target/109780). This call makes it no leaf.
_NO_LEAF = 'if (__builtin_expect(!args, 0)) tf_give_up("a launch has arguments");'


def _entry(kernel: Kernel) -> str:
    """Return the function that unpacks arguments and runs one thread, or, without collectives, a
    sequence of threads (`tf_kernel::run`). It contains the only copy of the kernel's body, which
    takes nearly all of the compile time.
    """
    name = kernel.name
    ctypes_ = [param.ctype for param in kernel.params]
    unpacked = "".join(
        f"  {ctype} const a{i} = *({ctype}*)args[{i}];\n" for i, ctype in enumerate(ctypes_)
    )
    passed = "".join(f", a{i}" for i in range(len(ctypes_)))
    run = _ONE_THREAD if kernel.collectives else _THREADS
    return f"""\
#undef tf_self
#undef {name}
static void {name}__run(void** args, tf_thread* self, tf_dim3 end) {{
  {_NO_LEAF}
{unpacked}{run.format(name=name, passed=passed)}}}
static unsigned {name}__nanoseconds;
extern "C" __attribute__((visibility("default"))) const tf_kernel {name}__kernel = {{
    {name}__run, &{name}__nanoseconds}};
"""


_ONE_THREAD = """\
  (void)end;
  {name}__body(self{passed});
"""
_THREADS = """\
  tf_thread own = *self;
  const tf_dim3 first = own.thread;
  for (unsigned z = first.z; z < end.z; ++z)
    for (unsigned y = first.y; y < end.y; ++y)
      for (unsigned x = first.x; x < end.x; ++x) {{
        own.thread = {{x, y, z}};
        TF_REPORTED(self->thread = own.thread);
        {name}__body(&own{passed});
      }}
"""
