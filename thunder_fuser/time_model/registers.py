"""Estimate of registers per thread, from which occupancy follows, without compiling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from thunder_fuser import kernel_ir as ir
from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.tables import reductions
from thunder_fuser.occupancy import registers_of_thread, resident_blocks
from thunder_fuser.time_model.instruction_memory import array_name

_STRAIGHT = (18, 0.6)
"""(constant, per 32-bit word of register arrays) of a thread's registers in kernels without loads
in loops. The constant covers indices, addresses and values in flight; the factor is below 1 since
stored values may reuse the registers of loaded ones. Fitted to ptxas' allocation.
"""
_IN_LOOPS = (24, 1.1)
"""(constant, per word) if a loop loads: the next iteration's vectors and accumulators stay live."""
_IN_PIECES = (18, 1.6)
"""(constant, per word) if many arrays are loaded under predicates: their elements do not share
registers.
"""
_MANY_PIECES = 8
_ENOUGH_THREADS = 1536
"""Resident threads per multiprocessor beyond which occupancy is not raised: RMSNorm of
8,192 x 4,096 takes no less time with 2,048.
"""
_TOO_MANY = 6
"""Registers per thread that ptxas can mostly save when launch bounds ask for it."""


def registers_of(kernel: ir.KernelIR, device: DeviceInfo) -> int:
    """Estimate registers per thread from the register arrays that are live at the same time; at
    most what `kernel.blocks_per_sm` resident blocks leave for each thread.
    """
    most = registers_of_thread(device, kernel.threads, max(kernel.blocks_per_sm, 1))
    statements = list(_statements(kernel.body, in_loop=False))
    arrays = [s for s, _ in statements if isinstance(s, ir.Registers) and s.zeroed]
    pieces = sum(isinstance(s.type, DataType) for s in arrays)
    loads = any(in_loop and _loads(s) for s, in_loop in statements)
    many = pieces >= _MANY_PIECES
    always, each = _IN_PIECES if many else _IN_LOOPS if loads else _STRAIGHT
    taken_apart = frozenset(_taken_apart([s for s, _ in statements]))
    return min(most, round(always + each * _words(kernel.body, taken_apart)))


def asking_for_occupancy(kernel: ir.KernelIR, device: DeviceInfo) -> ir.KernelIR:
    """Return the kernel with launch bounds that ask for one more resident block per multiprocessor,
    if it exceeds the registers for that by a few only, and if the bytes in flight of the blocks it
    has do not saturate memory. RoPE of Llama-3, backward, where two threads load each vector, takes
    64.8 us on an H200 with 48 warps of 40 registers, and 66.5 with 40 of 46; AdamW, whose threads
    load a vector of each of four tensors, 1,170 and 1,158.
    """
    is_free = not (kernel.blocks_per_sm or device.threads_are_serial or kernel.shared_bytes)
    if kernel.template != "pointwise" or not is_free:
        return kernel
    registers = registers_of(kernel, device)
    blocks = resident_blocks(device, kernel.threads, registers)
    few = registers_of_thread(device, kernel.threads, blocks + 1)
    most = min(_ENOUGH_THREADS, device.threads_per_sm)
    is_close = few < registers <= few + _TOO_MANY
    has_room = blocks > 0 and (blocks + 1) * kernel.threads <= most
    read = [p for p in kernel.parameters if p.is_pointer and (p.aliased or not p.written)]
    in_flight = sum(p.bytes for p in read) / kernel.blocks * blocks
    is_short = in_flight <= device.bytes_in_flight_per_sm
    fills = kernel.blocks > blocks * device.sm_count
    is_worth_asking = is_close and has_room and is_short and fills
    return replace(kernel, min_blocks_hint=blocks + 1) if is_worth_asking else kernel


def _loads(s: ir.Stmt) -> bool:
    return isinstance(s, ir.VectorLoad) or _is_fetch(s)


def _is_fetch(s: ir.Stmt) -> bool:
    return isinstance(s, ir.Assign) and isinstance(s.value, ir.RawLoad)


def _taken_apart(statements: Sequence[ir.Stmt]) -> Iterator[str]:
    """Yield arrays unpacked from words that are assigned once: they need no registers of their own
    in addition to the words.
    """
    times = Counter(array_name(s.target) for s in statements if isinstance(s, ir.Assign))
    for s in statements:
        if isinstance(s, ir.Unpack) and times[array_name(s.words)] == 1:
            yield array_name(s.target)


def _statements(body: ir.Body, *, in_loop: bool) -> Iterator[tuple[ir.Stmt, bool]]:
    """Yield all nested statements, each with True if it is in a loop that is not unrolled."""
    for s in body:
        yield s, in_loop
        match s:
            case ir.If():
                yield from _statements((*s.body, *s.otherwise), in_loop=in_loop)
            case ir.Loop():
                yield from _statements(s.body, in_loop=in_loop or s.kind is ir.LoopKind.SERIAL)
            case ir.Scope():
                yield from _statements(s.body, in_loop=in_loop)


def _words(body: ir.Body, without: Collection[str]) -> int:
    """Return 32-bit words of register arrays that a body declares, plus the largest count among its
    nested bodies.
    """
    own, inner = 0, [0]
    for s in body:
        match s:
            case ir.Registers() if s.name not in without and not s.in_place:
                own += -(-math.prod(s.sizes) * _size_of(s.type) // ir.WORD)
            case ir.If():
                inner += [_words(s.body, without), _words(s.otherwise, without)]
            case ir.Loop() | ir.Scope():
                inner.append(_words(s.body, without))
    return own + max(inner)


def _size_of(kind: ir.Type) -> int:
    match kind:
        case ir.RawVector():
            return max(kind.width * kind.dtype.itemsize, ir.WORD)
        case ir.Reducer():
            return kind.accumulate.itemsize * reductions.lookup(kind.op).accumulator.words
        case ir.ReducerLanes():
            return kind.lanes * _size_of(kind.reducer)
        case ir.PairedLanes():
            return kind.lanes * DataType.Float.itemsize
    return kind.itemsize
