"""Kernel arguments in launch format: values in memory, and an array of pointers to them.

`cuLaunchKernel` and the host target take the same `void**`.  The memory of a launch is allocated
once and refilled at each call, since packing into it costs a fraction of building it again.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence

from thunder_fuser.codegen.kernel import Kernel, Param
from thunder_fuser.errors import InternalError

# C++ type of a scalar parameter -> its `struct` format code, with native size and alignment.
_CODES = {
    "bool": "?",
    "signed char": "b",
    "unsigned char": "B",
    "short": "h",
    "unsigned short": "H",
    "int": "i",
    "unsigned": "I",
    "unsigned int": "I",
    "long long": "q",
    "unsigned long long": "Q",
    "float": "f",
    "double": "d",
}

UNFIT = (OverflowError, struct.error)
"""Exceptions of `pack` after which `fill` must be called: it rounds, or reports the error."""


def _code(kernel: Kernel, param: Param) -> str:
    if param.is_pointer:
        return "P"
    ctype = param.ctype.replace("const", "").strip()
    if ctype not in _CODES:
        raise InternalError(
            f"kernel {kernel.name}: parameter {param.name} has the type {param.ctype!r}, "
            f"expected a pointer or one of {', '.join(_CODES)}"
        )
    return _CODES[ctype]


class ArgumentBlock:
    """Memory for the arguments of one kernel; `address` is that of the `void**`.

    Not thread-safe: a launch reads it while other threads run.
    """

    __slots__ = ("_kernel", "_pointers", "_values", "address", "pack")

    def __init__(self, kernel: Kernel) -> None:
        codes = [_code(kernel, param) for param in kernel.params]
        # Padding precedes an item, so that its offset is its end minus its size.
        ends = [struct.calcsize("".join(codes[: n + 1])) for n in range(len(codes))]
        offsets = [end - struct.calcsize(code) for end, code in zip(ends, codes, strict=True)]
        self._kernel = kernel
        layout = struct.Struct("".join(codes))
        self._values = ctypes.create_string_buffer(max(layout.size, 1))
        self.pack = functools.partial(layout.pack_into, self._values, 0)
        start = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * max(len(codes), 1))(*(start + at for at in offsets))
        self.address = ctypes.addressof(self._pointers)

    def fill(self, args: Sequence[int | float | bool]) -> None:
        """Write the arguments of the next launch; InternalError if they do not fit the kernel.

        A launch tries `pack` first, which saves a call.
        """
        try:
            try:
                self.pack(*args)
            except OverflowError:
                # A value beyond fp32's range becomes infinite: ctypes rounds, `struct` raises.
                floats = [param.ctype == "float" for param in self._kernel.params]
                known = zip(floats, args, strict=True)
                self.pack(*(ctypes.c_float(x).value if is_float else x for is_float, x in known))
        except UNFIT as error:
            expected = ", ".join(f"{param.ctype} {param.name}" for param in self._kernel.params)
            raise InternalError(
                f"kernel {self._kernel.name}: cannot pass {args!r} as ({expected}): {error}"
            ) from error
