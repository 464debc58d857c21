"""Plans of compiled functions on a device mesh; no device is needed.

Placements are given by name: parameters and buffers by their names in the module
(`blocks.3.up.weight`), arguments by their names in the trace. Tensors saved for backward keep their
placement in the forward, and a gradient has the placement of the tensor that it is the gradient of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import thunder
import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import FuserValueError
from thunder_fuser.frontends.thunder.compiled import compiled_functions, last_traces
from thunder_fuser.frontends.thunder.plans.whole_trace import WholeTrace, whole_trace
from thunder_fuser.garbage import uncollected
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.sharding.annotations import Placed, annotated
from thunder_fuser.sharding.mesh import DeviceMesh, Partial, Sharding
from thunder_fuser.sharding.plan import MeshPlan, mesh_plan
from thunder_fuser.sharding.propagate import propagate


@uncollected()
def mesh_plans(source: Any, mesh: DeviceMesh, placed: Placed) -> tuple[MeshPlan, ...]:
    """Return the plan of each rank of a mesh (compute, memory, communication) for the forward, then
    for the backward.

    `source` is a function that Thunder compiled, after a call (fake tensors will do), or its final
    traces in a list; `placed` maps patterns of names to the sharded dimension by mesh axis:
    `{"*.up.weight": {"tp": 0}}`.

    Raises FuserTypeError for an object that Thunder did not compile, FuserValueError before the
    first run, for a pattern that matches no name, and for a dimension that does not divide.
    """
    if isinstance(source, (list, tuple)):
        forward, backward = (*source, None)[:2]
        return _plans(forward, backward, mesh, placed, {})
    functions = compiled_functions(source)
    if len(functions) > 1:
        raise FuserValueError(
            f"{source!r} has {len(functions)} graphs, of which each has names of its own; plan the "
            "traces of one"
        )
    names = _names_of(functions[0])
    return _plans(*last_traces(functions[0]), mesh, placed, names)


def _names_of(function: Any) -> dict[str, str]:
    """Map names of a trace's arguments to the module's names of parameters and buffers."""
    module = thunder.compile_data(function).fn
    if not isinstance(module, torch.nn.Module):
        return {}
    names = [n for n, _ in (*module.named_parameters(), *module.named_buffers())]
    return {f"t_{name.replace('.', '_')}": name for name in names}


def _plans(
    forward: TraceCtx,
    backward: TraceCtx | None,
    mesh: DeviceMesh,
    placed: Placed,
    called: Mapping[str, str],
) -> tuple[MeshPlan, ...]:
    whole = whole_trace(forward)
    tensors = {called.get(name, name): whole.named[name] for name in whole.given}
    asked = annotated(tensors, mesh, placed)
    plans = [_plan(whole, mesh, asked, "forward" if backward is not None else "program", called)]
    if backward is not None:
        given = plans[0].shardings.given
        known = {name: given[t] for name, t in whole.named.items() if t in given}
        behind = whole_trace(backward)
        found = _given_to(behind, known, _cotangents(forward, backward))
        arguments = [p.name for p in tree_flatten(forward.args)[0] if isinstance(p, Proxy)]
        for name, gradient in zip(arguments, _gradients(backward), strict=False):
            if gradient is not None and gradient in behind.named and name in known:
                found[behind.named[gradient]] = known[name]
        plans.append(_plan(behind, mesh, found, "backward", called))
    return tuple(plans)


def _plan(
    whole: WholeTrace,
    mesh: DeviceMesh,
    asked: Mapping[TensorView, Sharding],
    name: str,
    called: Mapping[str, str],
) -> MeshPlan:
    by_name = {t: dict(zip(mesh.names, s, strict=True)) for t, s in asked.items()}
    values = set(whole.fusion.values())
    by_name = {t: axes for t, axes in by_name.items() if t in values}
    names = {t: called.get(n, n) for n, t in reversed(list(whole.named.items()))}
    return mesh_plan(propagate(whole.fusion, mesh, by_name), name, names)


def _given_to(
    behind: WholeTrace, known: Mapping[str, Sharding], cotangents: Mapping[str, str]
) -> dict[TensorView, Sharding]:
    """Return the placements of the backward's inputs. A tensor that is partial in the forward has
    none: the backward is given its sum.
    """
    found = {}
    for name in behind.given:
        sharding = known.get(cotangents.get(name, name))
        if sharding is not None and not any(isinstance(p, Partial) for p in sharding):
            found[behind.named[name]] = sharding
    return found


def _cotangents(forward: TraceCtx, backward: TraceCtx) -> dict[str, str]:
    """Map names of the backward's cotangents to the forward results that they belong to."""
    lists = [b for b in backward.bound_symbols if b.sym.id is PrimIDs.UNPACK_SEQUENCE]
    given = [
        p.name
        for b in lists
        if getattr(b.args[0], "name", "") == "cotangents"
        for p in b.flat_proxy_outs
    ]
    returned = forward.bound_symbols[-1].args[0]
    results = returned.get("flat_output", ()) if isinstance(returned, Mapping) else returned
    names = [p.name for p in tree_flatten(results)[0] if isinstance(p, TensorProxy)]
    return dict(zip(given, names, strict=False))


def _gradients(backward: TraceCtx) -> Sequence[str | None]:
    """Return names of the gradients of the forward's arguments, None where there is none."""
    returned = backward.bound_symbols[-1].args
    flat = (
        returned[0] if len(returned) == 1 and isinstance(returned[0], (tuple, list)) else returned
    )
    return [p.name if isinstance(p, Proxy) else None for p in flat]
