"""Catalogue of refusals and errors: meaning, remedy and an example of each.

One row per code, in alphabetical order, and one per error; `docs/refusals.md` is generated from
them. Tests check that they are complete and run the examples.
"""

from __future__ import annotations

from typing import NamedTuple

from thunder_fuser import errors
from thunder_fuser.errors import FuserError


class Code(NamedTuple):
    """Catalogue row of a refusal code.

    code     `Refusal.code`
    meaning  reason in general terms
    remedy   action for the user, or why none is needed
    example  Python that causes such a refusal, with the names that docs/refusals.md explains
    """

    code: str
    meaning: str
    remedy: str
    example: str


class Mistake(NamedTuple):
    """Catalogue row of an error: remedy, and Python that raises it ("" if it needs a GPU)."""

    error: type[FuserError]
    remedy: str
    example: str


_NOTHING = "nothing: torch computes it"
_ANOTHER = "nothing: the plan takes another kind of kernel"

CODES = (
    Code(
        "argument",
        "a call has an argument that its claim does not know; it is taken in parts",
        "nothing: its parts are fused",
        "jit(lambda x: x.clamp(x.min(), x.max()))(x)",
    ),
    Code(
        "bug",
        "a mistake of ours, told with a warning and a repro",
        "report it with the repro",
        'with planted("thunder_fuser.frontends.thunder.fuser.Fuser._fuse"):\n    jit(torch.sin)(x)',
    ),
    Code(
        "call",
        "a call of torch stands between two parts of a fusion",
        "none, if the call is wanted: its operands and results are in memory",
        "define(lambda fd, x: fd.ops.matmul(fd.ops.exp(x), x))",
    ),
    Code(
        "cpu-scalar",
        "a region computes single numbers on the CPU in a program for a GPU",
        "nothing: a launch would take longer",
        "jit(lambda x, s: (x + 1, s * 2 + 1))(gpu, torch.tensor(1.0))",
    ),
    Code(
        "cut",
        "the definition cuts here",
        "leave out `segment_set`",
        "define(lambda fd, x: fd.ops.exp(fd.ops.segment_set(fd.ops.sin(x))))",
    ),
    Code(
        "device",
        "tensors are on a device, or on several, that kernels are not made for",
        "move them to one CUDA device or to the CPU",
        'jit(torch.sin)(x.to("meta"))',
    ),
    Code(
        "dilation",
        "a pad inserts elements between others",
        "pad at the ends alone, and write the others by an index",
        "jit(lambda x: thunder.core.prims.pad(x, 0.0, [(0, 0, 1), (0, 0, 0)]))(x)",
    ),
    Code(
        "division",
        "integers are divided, and torch raises an error if one is divided by zero",
        "divide floats, or use `rounding_mode` where zero cannot come",
        "jit(lambda n: n // n)(n)",
    ),
    Code(
        "dtype",
        "torch has no such operation on a dtype, or computes it in a way of its own",
        "cast the operand to the dtype that the sentence names",
        "jit(lambda n: n.to(torch.int8) + n.to(torch.int8))(n)",
    ),
    Code(
        "empty",
        "there are no elements, for which torch has rules of its own",
        _NOTHING,
        "jit(lambda x: torch.arange(3, 3) * 2)(x)",
    ),
    Code(
        "executor",
        "the function was compiled without this executor",
        "`thunder.jit(f, executors=[thunder_fuser.executor])`",
        "f = thunder.jit(torch.sin)\nf(x)\nthunder_fuser.refusals(f)",
    ),
    Code(
        "exponent",
        "an integer has a negative power, where torch raises an error",
        "cast to float",
        "jit(lambda n: n**-1)(n)",
    ),
    Code(
        "extent",
        "a transpose has too few points along one of its sides to be turned",
        _ANOTHER,
        "define(lambda fd, x, y: fd.ops.add(fd.ops.permute(x, [1, 0]), fd.ops.reshape(y, "
        "[64, 4])), [4, 64], 2)",
    ),
    Code(
        "fallback",
        "a kernel could not be prepared: its segment, or the fusion, runs in torch",
        "do what the error in it says; a bug: report it with the repro",
        'with planted("thunder_fuser.compile.lower"):\n    jit(torch.sin)(x)',
    ),
    Code(
        "fuel",
        "`THUNDER_FUSER_FUEL` or `set_fuel` allows no more fusions",
        "raise the number",
        "with options(fuel=0):\n    jit(torch.sin)(x)",
    ),
    Code(
        "grid_split",
        "blocks would share rows, and what waits for the result allows no such kernel",
        _ANOTHER,
        "define(lambda fd, x: fd.ops.sum(x, [1]))",
    ),
    Code(
        "guard",
        "a transpose reads under conditions that differ along its tile",
        _ANOTHER,
        "define(lambda fd, x, y: fd.ops.add(fd.ops.pad(fd.ops.permute(x, [1, 0]), [4, "
        "4]), fd.ops.pad(y, [4, 4])), count=2)",
    ),
    Code(
        "ill-typed",
        "the trace is wrong: an operation has operands that it cannot have",
        _NOTHING,
        "from thunder.core.prims import add\n"
        "jit(lambda x: add(x.sin(), x.sum()))(x.requires_grad_())",
    ),
    Code(
        "in-place",
        "an update writes to memory that others see, or that the region has made itself",
        "write the result to a new tensor",
        "def f(x):\n    y = x.exp()\n    y[::2] = 0\n    return y\njit(f)(x)",
    ),
    Code(
        "index",
        "`x[index] = value` where the index is no window",
        "use ints and slices of step 1",
        "def f(x):\n    x[::2] = 0\njit(f)(x)",
    ),
    Code(
        "layout",
        "a tensor lies in another order than the rows that a kernel reduces, so that a copy of it "
        "is cheaper than its sectors",
        "keep activations and gradients in one memory format",
        "define(lambda fd, x, y: fd.ops.sum(fd.ops.mul(fd.ops.permute(x, [1, 0]), y), [1]), "
        "[4096, 4096], count=2)",
    ),
    Code(
        "max_norm",
        "an embedding rescales its weight",
        "rescale before the call",
        'ask("EMBEDDING", n, x, max_norm=1.0)',
    ),
    Code(
        "memory-format",
        "a clone asks for a memory format",
        "`contiguous()` of a permuted view",
        'ask("CLONE", x, memory_format=torch.channels_last)',
    ),
    Code(
        "number",
        "only numbers are operands, or one is unknown until the function runs",
        "pass it as a 0-dim tensor if it changes from call to call",
        'jit(lambda x, s: x * (s * 2), cache="symbolic values")(x, 3)',
    ),
    Code(
        "outputs",
        "a kernel would write more tensors than it can",
        "nothing: there are several",
        "define(lambda fd, x: [fd.ops.add(x, float(k)) for k in range(129)])",
    ),
    Code(
        "overflow",
        "a number does not fit into the tensor that it is written to",
        "clamp it first",
        "def f(n):\n    n.to(torch.int8)[:2] = 999\njit(f)(n)",
    ),
    Code(
        "parallel",
        "one kernel would leave threads idle, or lose bandwidth, more than it saves",
        "nothing: the price of both is in the sentence",
        "define(lambda fd, x: fd.ops.div(x, fd.ops.sum(x, [1], keepdim=True)), [4, 1048576])",
    ),
    Code(
        "parameters",
        "a kernel would take more tensors than it can",
        "nothing: there are several",
        'with patched("thunder_fuser.segment.legality.MAX_POINTERS", 6):\n'
        "    define(lambda fd, *xs: [fd.ops.mul(xs[0], y) for y in xs], count=8)",
    ),
    Code(
        "position",
        "data decides what a transpose reads",
        _ANOTHER,
        "define(lambda fd, x: fd.ops.permute(fd.ops.gather(x, fd.ops.cast(x, "
        "DataType.Int), 1), [1, 0]))",
    ),
    Code(
        "registers",
        "accumulators would not fit into registers",
        _ANOTHER,
        "define(lambda fd, x: [fd.ops.sum(fd.ops.mul(x, float(k)), [0]) for k in "
        "range(40)], [4096, 64])",
    ),
    Code(
        "scan",
        "a scan runs along another dimension than the last, or rows are too long",
        _NOTHING,
        "jit(lambda x: x.cumsum(0))(x)",
    ),
    Code(
        "seed",
        "each element has a seed or an offset of its own",
        "one seed for a tensor",
        'ask("UNIFORM_PHILOX", (64,), 0.0, 1.0, device=cpu, dtype=thunder.float32, '
        "seed=n, offset=0)",
    ),
    Code(
        "shape",
        "shapes differ from what a kernel, or an update, can hold",
        "reshape to the sizes that the sentence names",
        "def f(x):\n    x[:2] = torch.ones(3, 2, 64)\njit(f)(x)",
    ),
    Code(
        "shape-only",
        "a region has only views, copies and new tensors",
        "nothing: no kernel gains",
        "jit(lambda x: x.t())(x)",
    ),
    Code(
        "size",
        "more operations for each element than one kernel should have",
        "none: it is cut",
        "define(lambda fd, x: reduce(lambda y, _: fd.ops.sin(y), range(2000), x), [64])",
    ),
    Code(
        "space",
        "two iteration spaces differ, so that two reductions or scans cannot share a kernel",
        "reduce over the same dimensions, where the program allows it",
        "define(lambda fd, x: (fd.ops.cumsum(x, 1), fd.ops.sum(x, [0])))",
    ),
    Code(
        "stage",
        "a kernel would want a value before it is reduced",
        _ANOTHER,
        "define(lambda fd, x: fd.ops.sum(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)), [0]))",
    ),
    Code(
        "stencil",
        "a reduction would compute each of its elements from several of another tensor's",
        "none: it goes through memory, from a kernel that neighbours share loads in",
        "define(lambda fd, x: fd.ops.sum(reduce(fd.ops.add, "
        "[fd.ops.slice(x, [k, 0], [k + 60, 64]) for k in range(4)]), [1]))",
    ),
    Code(
        "stride",
        "a transpose has no load whose strides turn",
        _ANOTHER,
        "define(lambda fd, x: fd.ops.exp(x), [64])",
    ),
    Code(
        "symbolic-shape",
        "a size is unknown until the function runs",
        'compile with the default `cache="constant values"`',
        'jit(lambda x: x.sum(0) * 2, cache="symbolic values")(x)',
    ),
    Code(
        "target",
        '`target="host"` leaves CUDA tensors to torch',
        'leave the option at "auto"',
        'with options(target="host"):\n    jit(torch.sin)(gpu)',
    ),
    Code(
        "total",
        "a result waits for what all blocks of a kernel fold together",
        "nothing: a kernel of its own reads the total",
        "define(lambda fd, x: fd.ops.sub(x, fd.ops.sum(x, [0])))",
    ),
    Code(
        "unclaimed",
        "an operation that this compiler does not generate",
        "nothing: it bounds fusions, and torch computes it",
        "jit(lambda x: x.sort())(x)",
    ),
    Code(
        "untrusted",
        "others could write into the kernel cache's folder",
        "`THUNDER_FUSER_CACHE_DIR` with a folder of your own",
        'folder.chmod(0o777)\nproblem_of(folder / "cache")',
    ),
    Code(
        "unusable",
        "the kernel cache's folder cannot be written",
        "`THUNDER_FUSER_CACHE_DIR` with a folder that can",
        '(folder / "file").touch()\nproblem_of(folder / "file" / "cache")',
    ),
    Code(
        "view",
        "torch gives a view where the parts of a call would copy",
        _NOTHING,
        "jit(lambda x: x.diagonal() * 2)(x)",
    ),
)

ERRORS = (
    Mistake(
        errors.FuserValueError,
        "give what the message expects",
        "thunder_fuser.report(thunder.jit(torch.sin))  # not called yet",
    ),
    Mistake(
        errors.FuserTypeError,
        "give what the message expects",
        "thunder_fuser.report(torch.sin)",
    ),
    Mistake(
        errors.FuserIndexError,
        "look at the data: the message has the index and the sizes",
        "jit(lambda x, n: F.embedding(n, x) * 2)(x, n + 64)",
    ),
    Mistake(
        errors.CompileError,
        "report it with the source that it names; meanwhile `THUNDER_FUSER_STRICT=0` runs in torch",
        'HOST.compile([kernel("bad", "no C++;")])',
    ),
    Mistake(
        errors.KernelError,
        "report it; `THUNDER_FUSER_HOST_DEBUG=1` says which tensor, block and thread it was",
        "with options(host_debug=True):\n"
        '    waits = kernel("waits", "if (threadIdx.x) __syncthreads();", collectives=True)\n'
        "    (launch,) = HOST.compile([waits])\n"
        "    launch(x.data_ptr(), x.data_ptr(), 1.0, 4)",
    ),
    Mistake(
        errors.LimitError,
        "report it: a schedule should not ask for that",
        'HOST.compile([kernel("large", "", block=(2048, 1, 1))])',
    ),
    Mistake(errors.LoadError, "a newer driver, or an older NVRTC", ""),
    Mistake(
        errors.TargetError,
        "install what the message names; `python -m thunder_fuser doctor` tries all targets",
        'with options(cxx="/no/compiler"):\n    jit(lambda x: torch.sin(x) * 0.123)(x)',
    ),
    Mistake(
        errors.ResourceError,
        "free what the message names; torch runs the fusion, and a later call tries again",
        "with options(cxx=\"sh -c 'kill -9 $$'\"):\n    jit(lambda x: torch.sin(x) * 0.123)(x)",
    ),
    Mistake(
        errors.InternalError,
        "report it with the repro that it names",
        '(launch,) = HOST.compile([kernel("empty", "")])\nlaunch("no address")',
    ),
)
"""Every error class except their base, FuserError."""
