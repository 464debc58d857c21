"""Facts about torch's calls as Thunder records them: which return views, how their results lie in
memory, which round each step, and what autograd saves for their gradients.

Tables of the names of calls, with the source in torch's behaviour: Thunder's decompositions say
nothing of memory.
"""

from __future__ import annotations

import thunder.torch as thunder_torch
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_fuser.frontends.thunder.claims.operands import is_static
from thunder_fuser.frontends.thunder.composites import (
    interpolation,
    movement,
    norms,
    pointwise,
    pools,
)

_GIVE_VIEWS = frozenset(getattr(thunder_torch, "_syms_returning_views", ()))
_MAY_GIVE_VIEWS = frozenset(getattr(thunder_torch, "_syms_that_may_return_views", ()))
_MAY_GIVE_ARGUMENT = frozenset({"torch.Tensor.type", "torch.Tensor.type_as", "torch.conj"})
"""Further calls that return their argument itself if it needs no conversion."""


def gives_view(bsym: BoundSymbol) -> bool:
    """True if the torch call returns views of its first argument, by Thunder's own list.

    Indexing by a tensor copies, unlike indexing by numbers and slices; but a 0-dim tensor counts as
    a number there.
    """
    if bsym.sym.id == "torch.Tensor.__getitem__":
        indices = bsym.flat_proxy_args[1:]
        return not any(isinstance(p, TensorProxy) and p.ndim for p in indices)
    return bsym.sym in _GIVE_VIEWS


def gives_new_memory(bsym: BoundSymbol) -> bool:
    """True if the torch call returns new memory, whatever its decomposition does."""
    return (
        bool(bsym.subsymbols)
        and not gives_view(bsym)
        and bsym.sym not in _MAY_GIVE_VIEWS
        and bsym.sym.id not in _MAY_GIVE_ARGUMENT
        and OpTags.IN_PLACE not in (bsym.sym.tags or ())
    )


ROW_MAJOR = frozenset(
    f"torch.{name}"
    for name in (
        *("softmax", "log_softmax", "nn.functional.softmin", "nn.functional.logsigmoid"),
        *("layer_norm", "masked_fill", "tril", "triu"),
        *("nn.functional.cross_entropy", "nn.functional.nll_loss"),
        *("Tensor.repeat", "tile", "repeat_interleave", "nn.functional.avg_pool3d"),
    )
)
ROW_MAJOR_UNLESS_CHANNELS = frozenset(
    f"torch.{name}"
    for name in ("batch_norm", "instance_norm", "nn.functional.group_norm", "rms_norm")
) | {norms.BATCH_NORM.id}
"""Calls that keep channels last, which only 4- and 5-dimensional tensors have; else row-major."""


def has_own_order(bsym: BoundSymbol) -> bool:
    """True for a call whose result is row-major, or is unless channels are last, in any case."""
    return bsym.sym.id in ROW_MAJOR or bsym.sym.id in ROW_MAJOR_UNLESS_CHANNELS


def raises_number(bsym: BoundSymbol) -> bool:
    """True for `torch.pow` of a number and a tensor, whose result torch allocates row-major."""
    return bsym.sym.id == "torch.pow" and not isinstance(bsym.args[0], TensorProxy)


def rounds_each_step(bsym: BoundSymbol) -> bool:
    """True for quotients rounded to integers whose kernel computes step by step in the dtype of
    16-bit floats: those by a tensor. By a number, or one element of a CPU, it computes in fp32.
    """
    if bsym.sym.id not in _QUOTIENTS or len(bsym.args) < 2:
        return False
    divisor = bsym.args[1]
    if not isinstance(divisor, TensorProxy):
        return False
    return divisor.device.type != "cpu" or not is_static(divisor.shape) or divisor.numel != 1


_QUOTIENTS = ("torch.div", "torch.floor_divide", pointwise.TRUNC_DIVIDE.id)
IN_ANOTHER_ORDER = frozenset(
    f"torch.{name}"
    for name in (
        *("logical_and", "logical_or", "logical_xor", "floor_divide", "copysign", "clamp"),
        # Of a differentiated program only their parts are left.
        *("rand_like", "randn_like"),
    )
) | {pointwise.TRUNC_DIVIDE.id}
"""Calls that lie as a pointwise result of their operands, whose decomposition in Thunder does not
start from the first operand itself."""

IN_FORMAT = frozenset(
    {
        *("torch.nn.functional.interpolate", interpolation.GATHERED["linear"].id),
        movement.ADAPTIVE_AVERAGE.id,
        *(symbol.id for calls in pools.CALLS for symbol in calls.values()),
    }
    - {pools.AVERAGE[3].id}
)
"""Calls whose result has other sizes than their operand, whose memory format it has."""


_INTERPOLATIONS = frozenset(
    {"torch.nn.functional.interpolate", *(symbol.id for symbol in interpolation.GATHERED.values())}
)


def keeps_format(bsym: BoundSymbol) -> bool:
    """True for such a call; not for interpolations of lines."""
    return (bsym.sym.id in IN_FORMAT and not interpolates_lines(bsym)) or keeps_format_on_cpus(bsym)


def interpolates_lines(bsym: BoundSymbol) -> bool:
    """True for an interpolation along one dimension, whose result is row-major."""
    return bsym.sym.id in _INTERPOLATIONS and bsym.flat_proxy_outs[0].ndim == 3


def may_have_rows(bsym: BoundSymbol) -> bool:
    """True for maxima of lines on a CPU: if autograd does not ask for their places, torch has a
    kernel of its own for these, which makes rows.
    """
    if bsym.sym not in (pools.LARGEST[1], pools.OTHERS[1]):
        return False
    best, *places = bsym.flat_proxy_outs
    return not places and best.device.type == "cpu"


_IN_FORMAT_ON_CPUS = (
    movement.PIXEL_SHUFFLE,
    movement.PIXEL_UNSHUFFLE,
    movement.CHANNEL_SHUFFLE,
)
"""Such calls on a CPU; on a GPU torch reshapes."""


def keeps_format_on_cpus(bsym: BoundSymbol) -> bool:
    outs = bsym.flat_proxy_outs
    return bsym.sym in _IN_FORMAT_ON_CPUS and outs[0].device.type == "cpu"


LIKE = frozenset(
    f"torch.{name}"
    for name in (
        *("zeros_like", "ones_like", "full_like", "isinf", "isnan", "isfinite", "isreal"),
        *("rand_like", "randn_like"),
    )
)
"""Calls that fill, or may fill, a tensor with one number, or with random ones, in the layout of
their operand."""


_SAVES_NOTHING = frozenset(
    f"torch.{name}"
    for name in (
        *("add", "sub", "neg", "to", "Tensor.to", "Tensor.type", "Tensor.type_as", "Tensor.float"),
        *("sum", "mean", "cat", "stack", "nn.functional.pad", "clone", "Tensor.contiguous"),
        *("zeros_like", "ones_like", "full_like", "Tensor.repeat", "detach"),
    )
)
"""Calls whose gradients read neither operands nor results."""
_SAVES_TENSORS_FOR_EACH_OTHER = frozenset(f"torch.{name}" for name in ("mul", "true_divide", "div"))
"""Calls that save nothing if one operand is a number."""


def saved_by_torch(trace: TraceCtx) -> set[str]:
    """Return names of values that autograd would save in eager code: operands and results of calls
    whose gradients may read them, and the bases of saved views.
    """
    saved: set[str] = set()
    for bsym in reversed(trace.bound_symbols[:-1]):
        tensors = [p.name for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)]
        given = [p.name for p in bsym.flat_proxy_outs]
        each_other = bsym.sym.id in _SAVES_TENSORS_FOR_EACH_OTHER
        if gives_view(bsym):
            saved.update(tensors[:1] if not saved.isdisjoint(given) else ())
        elif each_other:
            saved.update(tensors if len(tensors) > 1 else ())
        elif bsym.subsymbols and bsym.sym.id not in _SAVES_NOTHING:
            saved.update((*tensors, *given))
    return saved
