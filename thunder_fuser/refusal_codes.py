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


_NOTHING = "none needed: torch computes it"
_ANOTHER = "none needed: the plan uses another kind of kernel"

CODES = (
    Code(
        "argument",
        "a call has an argument that its claim does not support; it is decomposed",
        "none needed: its parts are fused",
        "jit(lambda x: x.clamp(x.min(), x.max()))(x)",
    ),
    Code(
        "bug",
        "a bug in thunder_fuser, reported by a warning with a repro",
        "report it with the repro",
        'with planted("thunder_fuser.frontends.thunder.fuser.Fuser._fuse"):\n    jit(torch.sin)(x)',
    ),
    Code(
        "call",
        "a torch call separates two parts of a fusion",
        "none if the call is intended: its operands and results are in memory",
        "define(lambda fd, x: fd.ops.matmul(fd.ops.exp(x), x))",
    ),
    Code(
        "cpu-scalar",
        "a region computes CPU scalars in a GPU program",
        "none needed: a launch would take longer",
        "jit(lambda x, s: (x + 1, s * 2 + 1))(gpu, torch.tensor(1.0))",
    ),
    Code(
        "cut",
        "the definition has a `segment_set` here",
        "remove the `segment_set`",
        "define(lambda fd, x: fd.ops.exp(fd.ops.segment_set(fd.ops.sin(x))))",
    ),
    Code(
        "device",
        "tensors are on an unsupported device, or on several devices",
        "move them to one CUDA device or to the CPU",
        'jit(torch.sin)(x.to("meta"))',
    ),
    Code(
        "division",
        "integer division, for which torch raises an error if a divisor is zero",
        "divide floats, or use `rounding_mode` if no divisor is zero",
        "jit(lambda n: n // n)(n)",
    ),
    Code(
        "dtype",
        "torch does not support the operation for a dtype, or has special rules for it",
        "cast the operand to the dtype that the message names",
        "jit(lambda n: n.to(torch.int8) + n.to(torch.int8))(n)",
    ),
    Code(
        "empty",
        "a tensor is empty, for which torch has special rules",
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
        "an integer is raised to a negative power, for which torch raises an error",
        "cast to float",
        "jit(lambda n: n**-1)(n)",
    ),
    Code(
        "extent",
        "a transpose tile would have too few points along one of its sides",
        _ANOTHER,
        "define(lambda fd, x, y: fd.ops.add(fd.ops.permute(x, [1, 0]), fd.ops.reshape(y, "
        "[64, 4])), [4, 64], 2)",
    ),
    Code(
        "fallback",
        "a kernel could not be prepared: its segment, or the fusion, runs in torch",
        "follow the error in the message; for a bug, report it with the repro",
        'with planted("thunder_fuser.compile.lower"):\n    jit(torch.sin)(x)',
    ),
    Code(
        "fuel",
        "the limit of `THUNDER_FUSER_FUEL` or `set_fuel` is reached",
        "raise the limit",
        "with options(fuel=0):\n    jit(torch.sin)(x)",
    ),
    Code(
        "grid_split",
        "blocks would share rows, but consumers of the result do not allow that",
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
        "the trace is ill-typed: an operation has operands that it does not accept",
        _NOTHING,
        "from thunder.core.prims import add\n"
        "jit(lambda x: add(x.sin(), x.sum()))(x.requires_grad_())",
    ),
    Code(
        "in-place",
        "an update writes to memory that is visible elsewhere, or that the region allocated",
        "write the result to a new tensor",
        "jit(lambda x: F.relu(x.exp(), inplace=True))(x)",
    ),
    Code(
        "index",
        "`x[index] = value` where a list has many positions in uneven steps, or torch raises",
        "use ints, slices or a mask",
        "def f(x):\n    x[[*range(9, 0, -1)]] = 0\njit(f)(x)",
    ),
    Code(
        "layout",
        "a tensor has another memory order than the rows of a reduction, so that copying it is "
        "cheaper than strided access",
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
        "all operands are numbers, or one is unknown until the function runs",
        "pass it as a 0-dim tensor if it changes from call to call",
        'jit(lambda x, s: x * (s * 2), cache="symbolic values")(x, 3)',
    ),
    Code(
        "outputs",
        "a kernel would exceed the limit of output tensors",
        "none needed: several kernels are used",
        "define(lambda fd, x: [fd.ops.add(x, float(k)) for k in range(129)])",
    ),
    Code(
        "overflow",
        "a negative number is written to an unsigned tensor, where torch wraps it around",
        "write the number that it wraps around to",
        "def f(n):\n    n.to(torch.uint8)[:2] = -1\njit(f)(n)",
    ),
    Code(
        "parallel",
        "one kernel would lose more by idle threads or bandwidth than it saves",
        "none needed: the message has the cost of both",
        "define(lambda fd, x: fd.ops.div(x, fd.ops.sum(x, [1], keepdim=True)), [4, 1048576])",
    ),
    Code(
        "parameters",
        "a kernel would exceed the limit of tensor parameters",
        "none needed: several kernels are used",
        'with patched("thunder_fuser.segment.legality.MAX_POINTERS", 6):\n'
        "    define(lambda fd, *xs: [fd.ops.mul(xs[0], y) for y in xs], count=8)",
    ),
    Code(
        "position",
        "a transpose has data-dependent indices",
        _ANOTHER,
        "define(lambda fd, x: fd.ops.permute(fd.ops.gather(x, fd.ops.cast(x, "
        "DataType.Int), 1), [1, 0]))",
    ),
    Code(
        "registers",
        "accumulators would not fit in registers",
        _ANOTHER,
        "define(lambda fd, x: [fd.ops.sum(fd.ops.mul(x, float(k)), [0]) for k in "
        "range(40)], [4096, 64])",
    ),
    Code(
        "scan",
        "a scan is not along the last dimension, or its rows are too long",
        _NOTHING,
        "jit(lambda x: x.cumsum(0))(x)",
    ),
    Code(
        "seed",
        "each element has its own seed or offset",
        "pass one seed per tensor",
        'ask("UNIFORM_PHILOX", (64,), 0.0, 1.0, device=cpu, dtype=thunder.float32, '
        "seed=n, offset=0)",
    ),
    Code(
        "shape",
        "shapes do not match those of the kernel, or of the updated tensor",
        "reshape to the sizes that the message names",
        "def f(x):\n    x[:2] = torch.ones(3, 2, 64)\njit(f)(x)",
    ),
    Code(
        "shape-only",
        "a region has only views, copies and new tensors",
        "none needed: a kernel would gain nothing",
        "jit(lambda x: x.t())(x)",
    ),
    Code(
        "size",
        "more operations per element than the limit of one kernel",
        "none needed: it is cut",
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
        "a kernel would need a reduction's result before it is complete",
        _ANOTHER,
        "define(lambda fd, x: fd.ops.sum(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True)), [0]))",
    ),
    Code(
        "stencil",
        "each element of a reduction would be computed from several of another tensor (a stencil)",
        "none needed: a kernel of its own stores it, in which neighbours share loads",
        "define(lambda fd, x: fd.ops.sum(reduce(fd.ops.add, "
        "[fd.ops.slice(x, [k, 0], [k + 60, 64]) for k in range(4)]), [1]))",
    ),
    Code(
        "stride",
        "a transpose kernel would have no transposed load",
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
        "a result depends on a reduction over all blocks of a kernel",
        "none needed: a second kernel reads the total",
        "define(lambda fd, x: fd.ops.sub(x, fd.ops.sum(x, [0])))",
    ),
    Code(
        "unclaimed",
        "an operation that this compiler does not generate",
        "none needed: it separates fusions, and torch computes it",
        "jit(lambda x: x.sort())(x)",
    ),
    Code(
        "untrusted",
        "other users could write to the kernel cache's folder",
        "set `THUNDER_FUSER_CACHE_DIR` to a folder of your own",
        'folder.chmod(0o777)\nproblem_of(folder / "cache")',
    ),
    Code(
        "unusable",
        "the kernel cache's folder cannot be written",
        "set `THUNDER_FUSER_CACHE_DIR` to a writable folder",
        '(folder / "file").touch()\nproblem_of(folder / "file" / "cache")',
    ),
    Code(
        "update",
        "an input is read after a kernel has written a part of it in place",
        "none needed: a later kernel reads it",
        "def f(x):\n    x[2:4] = 0\n    return x.exp()\njit(f)(x)",
    ),
    Code(
        "view",
        "torch returns a view where the decomposition of a call would copy",
        _NOTHING,
        "jit(lambda x: x.diagonal() * 2)(x)",
    ),
)

ERRORS = (
    Mistake(
        errors.FuserValueError,
        "pass what the message expects",
        "thunder_fuser.report(thunder.jit(torch.sin))  # not called yet",
    ),
    Mistake(
        errors.FuserTypeError,
        "pass what the message expects",
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
    Mistake(errors.LoadError, "use a newer driver, or an older NVRTC", ""),
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
        "report it, with that script if there is one",
        '(launch,) = HOST.compile([kernel("empty", "")])\nlaunch("no address")',
    ),
)
"""Every error class except their base, FuserError."""
