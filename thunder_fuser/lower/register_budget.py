"""Register budget: 32-bit registers that a thread may spend on each purpose.

Compilers allocate registers after a schedule is made, so that schedules divide beforehand what a
thread has (`occupancy.registers_of_thread`: 64 in a block of 1,024 threads, 128 in one of 512)
among computation, a cached row, accumulators and loads in flight. More than there is spills; less
leaves rows to be read again, or memory idle. The figures are those with which kernels do not spill:
`python -m tests.tools.shape_sweep --resources` shows which do after one has changed.
"""

from __future__ import annotations

FEWEST_REGISTERS = 48
"""Registers per thread below which reduction kernels spill: blocks are smaller on a device that has
no room for so many. Launch bounds that make room for more threads squeeze registers to 16.
"""

# ---- computation

WORKING_REGISTERS = 40
"""For computation, besides a cached row and its accumulators. The backward of softmax of 32,768
columns spills 44 bytes with both of its rows in registers.
"""
STAGE_REGISTERS = 16
"""More `WORKING_REGISTERS` for each stage after the first, with accumulators of several vectors."""
FEWEST_WORKING_REGISTERS = 32
"""`WORKING_REGISTERS` where registers hold only a part of a row, of one vector a thread. With eight
of them, loads of the other part are all in flight, and 288 to 1,608 bytes a thread spill: softmax's
backward of 65,536 columns 344 on sm_80, 1,420 on sm_75, to save 128 bytes that are read again. Also
with both parts: RMSNorm's backward of 32,768 columns spills 272 on sm_89, to save 64.
"""
STRIDING_REGISTERS, STRIDING_REGISTERS_OF_SEVERAL = 24, 32
"""For computation, besides cached rows and accumulators, when loads ahead and row-invariant vectors
are chosen: with one vector of a row per thread, and with several.
"""
STRIDING_STAGE_REGISTERS = 4
"""More `STRIDING_REGISTERS` for each stage after the first."""
OUTER_STRIDING_REGISTERS = 28
"""`STRIDING_REGISTERS` of an outer reduction with several threads per row."""
DOUBLE_REGISTERS = 16
"""For arithmetic on fp64 accumulators, whose division is a subroutine."""

# ---- cached rows

ROW_CACHE_REGISTERS = 96
"""Most for a thread's part of a row: 128 without `FEWEST_WORKING_REGISTERS`."""
CROWDED_ROW_REGISTERS = 64
"""For a thread's part of a row. Above this, accesses in the L2 cache that only the last pass reads
are loaded there, which frees registers for more threads.
"""
BESIDE_SHARED_REGISTERS = 28
"""Most for a thread's part of a row where shared memory has the rest."""
VALUE_CACHE_REGISTERS = 128
"""Most that a thread has in all when computed values are cached in registers."""
ROW_REGISTERS, PORTION_REGISTERS = 112, 8
"""Most for accumulators and all that a row reads, of the 128 in a block of 512 threads; and those
of them that a loop over portions of the rows takes.
"""

# ---- accumulators

ACCUMULATORS = 32
"""Most for accumulators in a block of 1,024 threads: half of what a thread has there."""
SECOND_ACCUMULATORS = 24
"""`ACCUMULATORS` of two sets, one for a part of the rows, in blocks that reduce rows, too. Two
whole sets spill 240 to 408 bytes in the backwards of norms with 65,536 rows of 4,096 columns.
"""
OUTER_ACCUMULATORS = 16
"""`ACCUMULATORS` of an outer reduction: each is held with its result until the last pass."""
INVARIANT_REGISTERS = 39
"""Most for accumulators and row-invariant vectors, which compilers keep in registers, in a block of
1,024 threads. With 40, two vectors of a row spill on sm_100.
"""
TESTED_REGISTERS = 12
"""More where some threads have no vector: predicates zero their operands."""
MAX_ACCUMULATORS = 48
"""Most for accumulators of a kernel without row reductions: one with more is refused."""
HOST_ACCUMULATORS = 96
"""Words of accumulators that stay in a core's registers: AVX2 has 16 of 8 words."""
COLUMN_ACCUMULATORS, BLOCK_ACCUMULATORS = 4, 16384
"""Most for accumulators of a column, and of all columns of a block that also reduces rows: 16 for
each of 1,024 threads. Blocks of a cluster divide the columns among themselves.
"""

# ---- loads in flight

AHEAD_REGISTERS = 32
"""For loads ahead of a pass: half of what a thread has in a block of 1,024."""
GUARDED_AHEAD_REGISTERS = 20
"""`AHEAD_REGISTERS` where lanes may be outside of the row: each has a predicate."""
DEFAULT_UNROLL_REGISTERS = 32
"""Most for loads and column accumulators of a loop with the default unroll factor. NVVM would
unroll up to 32 iterations, and ptxas spill what these compute with.
"""
EVENED_REGISTERS, BESIDE_EVENED_REGISTERS = 40, 8
"""Pointwise kernels: most for loads where parts with few loads share a launch, and so its registers
per thread, with one that has many; and those in addition to them.
"""
TILE_REGISTERS = 96
"""Transpose kernels: most for loads in flight."""
ARRAY_ACCESSES = 4
"""Most accesses of the widest type that one register array holds: vectors are as wide as fill an
access of the narrowest type, and no wider than this.
"""
