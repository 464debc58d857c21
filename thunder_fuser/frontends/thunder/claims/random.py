"""Claims for prims that draw random numbers.

A prim that reads and advances torch's generator is claimed in its stateless form, with seed and
offset as arguments (`rng_state.py`): numbers that a trace draws once per call. Then a kernel may
compute a random number anywhere, and repeatedly. A fusion therefore draws other numbers than eager
torch for the same `torch.manual_seed`; a random tensor that is fused with nothing stays with torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core.devices import Device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.errors import FuserTypeError, InternalError, Refusal
from thunder_fuser.frontends.thunder.claims.claim import Claim
from thunder_fuser.frontends.thunder.claims.create import refuse_new
from thunder_fuser.frontends.thunder.claims.layout import lying_as
from thunder_fuser.frontends.thunder.claims.operands import data_type
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import TensorView, Val
from thunder_fuser.ir.tables import random
from thunder_fuser.segment.regions.joint_graph import Role

NORMAL_PHILOX = "normal_philox"
"""Id of stateless `randn`, with seed and offset, which Thunder has no prim for."""


def drawn(bsym: BoundSymbol) -> Iterator[str]:
    """Yield names of claimable random tensors that a symbol, or a subsymbol, draws."""
    if bsym.sym.id in (PrimIDs.UNIFORM, PrimIDs.RANDN):
        yield bsym.output.name
    for part in bsym.subsymbols:
        yield from drawn(part)


def _refuse(op: str, sizes: Sequence[object], device: Device, dtype: object) -> Refusal | None:
    if refused := refuse_new(sizes, device, dtype):
        return refused
    try:
        random.lookup(op).check(data_type(dtype))
    except FuserTypeError as error:
        return Refusal("dtype", str(error))
    return None


def _refuse_uniform(
    shape: Sequence[object], low: object, high: object, *, device: Device, dtype: object,
    seed: object = None, offset: object = None, like: object = None,
) -> Refusal | None:  # fmt: skip
    if any(isinstance(x, TensorProxy) for x in (seed, offset)):
        return Refusal("seed", "a seed or an offset for each element stays with torch")
    return _refuse("uniform", shape, device, dtype)


def _refuse_normal(
    shape: Sequence[object], *, device: Device, dtype: object, seed: object = None,
    offset: object = None, like: object = None,
) -> Refusal | None:  # fmt: skip
    return _refuse("normal", shape, device, dtype)


def _uniform(
    b: FusionBuilder, shape: Sequence[int], low: Val, high: Val, *, device: Device, dtype: object,
    seed: Val, offset: Val, like: TensorView | None = None,
) -> Val:  # fmt: skip
    made = b.random("uniform", shape, (low, high), (seed, offset), data_type(dtype))
    return made if like is None else lying_as(b, made, [like])


def _normal(
    b: FusionBuilder, shape: Sequence[int], *, device: Device, dtype: object, seed: Val,
    offset: Val, like: TensorView | None = None,
) -> Val:  # fmt: skip
    made = b.random("normal", shape, (0.0, 1.0), (seed, offset), data_type(dtype))
    return made if like is None else lying_as(b, made, [like])


def _stateful(b: FusionBuilder, *arguments: object, **options: object) -> Val:
    raise InternalError("a random primitive needs a seed and an offset before it is built")


CLAIMS = {
    PrimIDs.UNIFORM: Claim(Role.CREATE, _refuse_uniform, _stateful),
    PrimIDs.RANDN: Claim(Role.CREATE, _refuse_normal, _stateful),
    PrimIDs.UNIFORM_PHILOX: Claim(
        Role.CREATE, _refuse_uniform, _uniform, random.lookup("uniform").cost
    ),
    NORMAL_PHILOX: Claim(Role.CREATE, _refuse_normal, _normal, random.lookup("normal").cost),
}
