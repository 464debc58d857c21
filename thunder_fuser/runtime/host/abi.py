"""ctypes declarations of the structs and functions in csrc_templates/host/abi.h."""

from __future__ import annotations

import ctypes
import enum


class Order(enum.IntEnum):
    """Order in which threads and blocks of a launch run between barriers (`tf_order`)."""

    FORWARD = 0
    REVERSE = 1
    RANDOM = 2


class Flag(enum.IntFlag):
    """Options of a launch (`tf_flag`)."""

    PLAIN = 1
    RESIDENT = 2
    FAITHFUL = 4
    GUARD_SHARED = 8
    ALL_THREADS = 16


class Failure(enum.IntEnum):
    """Kind of a launch failure (`tf_failure`)."""

    BROKEN = 1
    BAD_INDEX = 2


class Dim3(ctypes.Structure):
    """`tf_dim3`"""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class Call(ctypes.Structure):
    """`tf_call`: parameters of one launch."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_uint),
        ("grid", Dim3),
        ("block", Dim3),
        ("cluster", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("threads", ctypes.c_int),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("shared_fill", ctypes.c_ubyte),
    )


def declare(runtime: ctypes.CDLL) -> ctypes.CDLL:
    """Set the argument and result types of the runtime library's functions."""
    runtime.tf_launch.argtypes = (ctypes.c_void_p,)
    runtime.tf_launch.restype = ctypes.c_int
    runtime.tf_guard_alloc.argtypes = (ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_char_p)
    runtime.tf_guard_alloc.restype = ctypes.c_void_p
    runtime.tf_guard_damage.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_longlong))
    runtime.tf_guard_damage.restype = ctypes.c_int
    for function in (runtime.tf_guard_protect, runtime.tf_guard_free):
        function.argtypes = (ctypes.c_void_p,)
        function.restype = None
    return runtime
