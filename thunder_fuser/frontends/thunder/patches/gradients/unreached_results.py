"""Results of a call with several of them that no gradient reaches.

Autograd passes None for them, and the call's derivative leaves out what comes from there. Thunder
passes zeros, and 0 * inf is NaN: so were the gradients of the eigenvalues of a matrix that has
equal ones (`torch.linalg.eigh(x)[0]`), and those of the mean of `torch.var_mean` beside NaN. A rule
reads such gradients with `gradient_of_part`; where Thunder has made zeros of one, a call that is
torch's as a whole is given None, and sums leave out products with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import thunder.torch as ltorch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transform_common import dce
from thunder.transforms import autodiff

from thunder_fuser.frontends.thunder.autograd.rules import PART
from thunder_fuser.frontends.thunder.autograd.torch_calls import is_backward_of_call
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_ZEROS = frozenset({ltorch.zeros.id, PrimIDs.FULL})
_PRODUCTS = frozenset({ltorch.mul.id, PrimIDs.MUL})
_LINEAR = frozenset({
    ltorch.to.id, ltorch.true_divide.id, ltorch.reshape.id, PrimIDs.DIV, PrimIDs.RESHAPE,
    PrimIDs.BROADCAST_IN_DIM, PrimIDs.CONVERT_ELEMENT_TYPE,
})  # fmt: skip
"""Operations that are linear in their first operand."""
_SUMS = frozenset({ltorch.add.id, PrimIDs.ADD})


def _transform(original: Callable[..., TraceCtx], /, *args: object, **kwargs: object) -> TraceCtx:
    joint = original(*args, **kwargs)
    if not is_patched() or not any(map(_is_unreached, joint.bound_symbols)):
        return joint
    provenance = joint.get_provenance()
    joint.bound_symbols = _without_unreached(joint.bound_symbols)
    joint = dce(joint)
    joint.set_provenance(provenance)
    return joint


def _is_unreached(bsym: BoundSymbol) -> bool:
    """True for zeros that Thunder made in place of a gradient of a part."""
    return bsym.sym.id in _ZEROS and PART in bsym.output.tags


def _without_unreached(bsyms: list[BoundSymbol]) -> list[BoundSymbol]:
    found: list[BoundSymbol] = []
    absent: set[str] = set()
    instead: dict[Variable, Proxy] = {}
    for given in bsyms:
        bsym = given.from_bsym_swap_proxies(instead, skip_output=True)
        rest = [x for x in bsym.flat_proxy_args if x.name not in absent]
        if _is_unreached(bsym):
            absent.add(bsym.output.name)
        elif len(rest) == len(bsym.flat_proxy_args):
            pass
        elif is_backward_of_call(bsym.sym):
            call, cotangents = bsym.args[:3], bsym.args[3:]
            reached = (None if _is_in(absent, x) else x for x in cotangents)
            bsym = bsym.from_bsym(args=(*call, *reached))
        elif _vanishes(bsym, absent):
            absent.add(bsym.output.name)
        elif bsym.sym.id in _SUMS and _adds_like(rest, bsym):
            instead[variableify(bsym.output)] = rest[0]
            continue
        found.append(bsym)
    return found


def _is_in(absent: set[str], x: object) -> bool:
    return isinstance(x, TensorProxy) and x.name in absent


def _vanishes(bsym: BoundSymbol, absent: set[str]) -> bool:
    """True if the result is a gradient that does not reach, too."""
    if bsym.sym.id in _PRODUCTS:
        return True
    if bsym.sym.id in _SUMS:
        return all(x.name in absent for x in bsym.flat_proxy_args)
    return bsym.sym.id in _LINEAR and _is_in(absent, bsym.args[0])


def _adds_like(rest: Sequence[Proxy], bsym: BoundSymbol) -> bool:
    """True if `rest` is one tensor of the sizes and dtype of the sum, and not multiplied there."""
    out = bsym.output
    if len(bsym.flat_proxy_args) != 2 or len(rest) != 1 or not isinstance(rest[0], TensorProxy):
        return False
    is_scaled = any(isinstance(x, (int, float)) and x != 1 for x in bsym.flat_args)
    return not is_scaled and (rest[0].shape, rest[0].dtype) == (out.shape, out.dtype)


def register() -> None:
    """Patch Thunder's gradient transform."""
    original = autodiff.grad_transform_on_trace
    autodiff.grad_transform_on_trace = partial(_transform, original)
