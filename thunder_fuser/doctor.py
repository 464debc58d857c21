"""`doctor`: report installed versions and compilers, and run a kernel on every target.

Each available target compiles a small kernel, runs it and checks its results.  An unavailable one
is reported with the reason and does not change the exit status; for CUDA, compilation, which needs
no GPU, is then tried.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from importlib import metadata

import torch

from thunder_fuser import __version__
from thunder_fuser.cache_command import info
from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.config import TABLE, current
from thunder_fuser.device_table import DATASHEETS
from thunder_fuser.errors import FuserError, TargetError
from thunder_fuser.runtime.cuda import driver as cuda_driver
from thunder_fuser.runtime.cuda import nvrtc as cuda_program
from thunder_fuser.runtime.cuda.target import version_problem
from thunder_fuser.runtime.host.compiler import find_compiler
from thunder_fuser.runtime.target import target_for

_COUNT = 1000
_BLOCK = 128
_PROBE = Kernel(
    name="tf_doctor",
    source="""extern "C" __global__ void tf_doctor(const float* x, float* y, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + 1.0f;
}
""",
    headers=("prelude.cuh",),
    params=(
        Param("x", "const float*"),
        Param("y", "float*"),
        Param("a", "float"),
        Param("n", "int"),
    ),
    grid=(-(-_COUNT // _BLOCK), 1, 1),
    block=(_BLOCK, 1, 1),
)


def main() -> int:
    """Print the findings; return 0 iff a target is available and all available ones work."""
    for title, text in _findings():
        print(f"{title:18} {text}")
    print(info())
    results = {"host": _try_host(), "cuda": _try_cuda()}
    print("targets")
    for name, (_, text) in results.items():
        print(f"  {name:5} {text}")
    present = [works for works, _ in results.values() if works is not None]
    return 0 if present and all(present) else 1


def _findings() -> Iterator[tuple[str, str]]:
    yield (
        "thunder_fuser",
        f"{__version__}, Python {platform.python_version()}, {platform.platform()}",
    )
    cuda = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    yield "torch", f"{torch.__version__}, built {cuda}"
    for package in ("lightning-thunder", "cuda-bindings"):
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"
    yield "driver", cuda_driver.driver_problem() or f"for CUDA {cuda_driver.driver_version()}"
    try:
        archs = cuda_program.supported_archs()
        yield "NVRTC", f"{cuda_program.nvrtc_version()}, for {' '.join(archs)}"
    except TargetError as error:
        yield "NVRTC", str(error)
    try:
        compiler = find_compiler()
        yield "C++ compiler", f"{compiler.name} ({' '.join(compiler.command)})"
    except TargetError as error:
        yield "C++ compiler", str(error)
    options = current()
    changed = [option for option in TABLE if getattr(options, option.name) != option.default]
    values = (f"{option.name}={getattr(options, option.name)!r}" for option in changed)
    yield "options", ", ".join(values) or "all at their defaults"


def _try_host() -> tuple[bool | None, str]:
    """Return True if the host target works, None if it is unavailable, and the text to print."""
    try:
        find_compiler()
    except TargetError as error:
        return None, f"absent: {error}"
    return _try(torch.device("cpu"))


def _try_cuda() -> tuple[bool | None, str]:
    """Return True if the CUDA target works, None if it is unavailable, and the text to print."""
    problem = cuda_driver.driver_problem()
    if not problem and not torch.cuda.is_available():
        problem = "there is a driver, but torch cannot use it"
    problem = problem or version_problem()
    if not problem:
        return _try(torch.device("cuda"))
    try:
        for arch in DATASHEETS:
            cuda_program.compile_cubin([_PROBE], arch)
    except FuserError as error:
        return None, f"absent: {problem}; compiling fails too: {error}"
    return None, f"absent: {problem}; compiles for {', '.join(DATASHEETS)}"


def _try(device: torch.device) -> tuple[bool, str]:
    start = time.perf_counter()
    try:
        target = target_for(device)
        x = torch.arange(_COUNT, dtype=torch.float32, device=device)
        y = torch.zeros_like(x)
        (launch,) = target.compile([_PROBE])
        launch(x.data_ptr(), y.data_ptr(), 2.0, _COUNT)
        result = y.tolist()
    except Exception as error:  # any error is a finding to report
        return False, f"broken: {type(error).__name__}: {error}"
    if result != [2.0 * n + 1.0 for n in range(_COUNT)]:
        return False, "broken: the kernel ran and its numbers are wrong"
    milliseconds = 1e3 * (time.perf_counter() - start)
    return True, f"works: {target.device_info(device).name}, {milliseconds:.0f} ms"
