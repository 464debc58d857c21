"""Catalogue of refusals: what each code means, and what to do about it.

A row a code, in alphabetical order; `docs/refusals.md` is made of it, and a test holds it complete.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """One row.

    code     what a refusal is grouped by
    meaning  what it says
    remedy   what a user can do, or why nothing is to be done
    """

    code: str
    meaning: str
    remedy: str


_NOTHING = "nothing: torch computes it"
_ANOTHER = "nothing: the plan takes another kind of kernel"

CODES = (
    Code(
        "argument",
        "a call has an argument that its claim does not know; it is taken in parts",
        "nothing: its parts are fused",
    ),
    Code("bug", "a mistake of ours, told with a warning and a repro", "report it with the repro"),
    Code(
        "call",
        "a call of torch stands between two parts of a fusion",
        "none, if the call is wanted: its operands and results are in memory",
    ),
    Code(
        "cpu-scalar",
        "a region computes single numbers on the CPU in a program for a GPU",
        "nothing: a launch would take longer",
    ),
    Code("cut", "the definition cuts here", "leave out `segment_set`"),
    Code(
        "device",
        "tensors are on a device, or on several, that kernels are not made for",
        "move them to one CUDA device or to the CPU",
    ),
    Code(
        "dilation",
        "a pad inserts elements between others",
        "pad at the ends alone, and write the others by an index",
    ),
    Code(
        "division",
        "integers are divided, and torch raises an error if one is divided by zero",
        "divide floats, or use `rounding_mode` where zero cannot come",
    ),
    Code("dtensor", "an operand is a DTensor", "call with local tensors, or leave it to torch"),
    Code(
        "dtype",
        "torch has no such operation on a dtype, or computes it in a way of its own",
        "cast the operand to the dtype that the sentence names",
    ),
    Code("empty", "there are no elements, for which torch has rules of its own", _NOTHING),
    Code(
        "executor",
        "the function was compiled without this executor",
        "`thunder.jit(f, executors=[thunder_fuser.executor])`",
    ),
    Code(
        "exponent", "an integer has a negative power, where torch raises an error", "cast to float"
    ),
    Code("extent", "a transpose has too few points along one of its sides to be turned", _ANOTHER),
    Code(
        "fallback",
        "a kernel could not be prepared: its segment runs in torch",
        "see the error that it names, and report it with the repro",
    ),
    Code("fuel", "`THUNDER_FUSER_FUEL` or `set_fuel` allows no more fusions", "raise the number"),
    Code("grad", "a tensor that requires gradients is updated in place", "update under `no_grad`"),
    Code(
        "grid_split",
        "blocks would share rows, and what waits for the result allows no such kernel",
        _ANOTHER,
    ),
    Code("guard", "a transpose reads under conditions that differ along its tile", _ANOTHER),
    Code(
        "ill-typed", "the trace is wrong: an operation has operands that it cannot have", _NOTHING
    ),
    Code(
        "in-place",
        "an update writes to memory that others see, or that the region has made itself",
        "write the result to a new tensor",
    ),
    Code(
        "index", "`x[index] = value` where the index is no window", "use ints and slices of step 1"
    ),
    Code("max_norm", "an embedding rescales its weight", "rescale before the call"),
    Code("memory-format", "a clone asks for a memory format", "`contiguous()` of a permuted view"),
    Code(
        "number",
        "only numbers are operands, or one is unknown until the function runs",
        "pass it as a 0-dim tensor if it changes from call to call",
    ),
    Code("outputs", "a kernel would write more tensors than it can", "nothing: there are several"),
    Code(
        "overflow", "a number does not fit into the tensor that it is written to", "clamp it first"
    ),
    Code(
        "parallel",
        "one kernel would leave threads idle, or lose bandwidth, more than it saves",
        "nothing: the price of both is in the sentence",
    ),
    Code(
        "parameters", "a kernel would take more tensors than it can", "nothing: there are several"
    ),
    Code("position", "data decides what a transpose reads", _ANOTHER),
    Code("registers", "accumulators would not fit into registers", _ANOTHER),
    Code(
        "scan", "a scan runs along another dimension than the last, or rows are too long", _NOTHING
    ),
    Code("seed", "each element has a seed or an offset of its own", "one seed for a tensor"),
    Code(
        "shape",
        "shapes differ from what a kernel, or an update, can hold",
        "reshape to the sizes that the sentence names",
    ),
    Code(
        "shape-only", "a region has only views, copies and new tensors", "nothing: no kernel gains"
    ),
    Code("size", "more operations for each element than one kernel should have", "none: it is cut"),
    Code(
        "space",
        "two iteration spaces differ, so that two reductions or scans cannot share a kernel",
        "reduce over the same dimensions, where the program allows it",
    ),
    Code("stage", "a kernel would want a value before it is reduced", _ANOTHER),
    Code("stride", "a transpose has no load whose strides turn", _ANOTHER),
    Code(
        "symbolic-shape",
        "a size is unknown until the function runs",
        'compile with the default `cache="constant values"`',
    ),
    Code("target", '`target="host"` leaves CUDA tensors to torch', 'leave the option at "auto"'),
    Code(
        "total",
        "a result waits for what all blocks of a kernel fold together",
        "nothing: a kernel of its own reads the total",
    ),
    Code(
        "unclaimed",
        "an operation that this compiler does not generate",
        "nothing: it bounds fusions, and torch computes it",
    ),
    Code(
        "untrusted",
        "others could write into the kernel cache's folder",
        "`THUNDER_FUSER_CACHE_DIR` with a folder of your own",
    ),
    Code(
        "unusable",
        "the kernel cache's folder cannot be written",
        "`THUNDER_FUSER_CACHE_DIR` with a folder that can",
    ),
    Code("view", "torch gives a view where the parts of a call would copy", _NOTHING),
)
