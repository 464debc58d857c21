"""Members of a compiled module, read by one step each from the module that has them.

A prologue asked the compiled module for each parameter, buffer and submodule by its whole name,
`module.get_parameter("layers.0.mlp.weight")`, a walk from the outermost module in Python. Here it
takes each step once, `m7._parameters["weight"]`, for functions compiled with this executor; modules
with transforms, which replace parameters, are asked as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import thunder
from thunder.core import prims
from thunder.core.compile_data import get_compile_data
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, tracectx

from thunder_fuser.frontends.thunder.patches.modules.module_state import CompiledModule
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_SUBMODULES = "_modules"
_HOMES = {
    PrimIDs.UNPACK_PARAMETER: "_parameters",
    PrimIDs.UNPACK_BUFFER: "_buffers",
    PrimIDs.UNPACK_SUBMODULE: _SUBMODULES,
}


def read_by_steps(prologue: TraceCtx) -> TraceCtx:
    """Return the prologue that reads members of modules by single names."""
    found = from_trace(prologue)
    with tracectx(found):
        found.bound_symbols = [*_steps(prologue)]
    found.set_provenance(TraceProvenance("Members of modules read by steps"))
    return found


def _steps(prologue: TraceCtx) -> Iterator[BoundSymbol]:
    roots: dict[str, Proxy] = {}
    known: dict[tuple[str, str], Proxy] = {}

    def read(symbol: Any, owner: Proxy, key: str, output: Proxy | None) -> Iterator[BoundSymbol]:
        place = owner.name, key
        if output is not None or place not in known:
            found = Proxy(prefix="m") if output is None else output
            known.setdefault(place, found)
            yield symbol.bind(owner, key, output=found)

    for symbol in prologue.bound_symbols:
        if symbol.sym.id is PrimIDs.UNPACK_THUNDER_MODULE:
            roots[symbol.output.name] = symbol.args[0]
        home = _HOMES.get(symbol.sym.id)
        if home is None or symbol.args[0].name not in roots or not symbol.args[1]:
            yield symbol
            continue
        owner = roots[symbol.args[0].name]
        *owners, last = symbol.args[1].split(".")
        for name in owners:
            for prim, key in ((prims.unpack_attr, _SUBMODULES), (prims.unpack_getitem, name)):
                yield from read(prim, owner, key, None)
                owner = known[owner.name, key]
        yield from read(prims.unpack_attr, owner, home, None)
        yield from read(prims.unpack_getitem, known[owner.name, home], last, symbol.output)


def _transformed(original: Callable[..., Any], trace: TraceCtx, *args: Any, **options: Any) -> Any:
    """Return the traces that a trace becomes on the way to its execution."""
    if trace.siginfo().name == "prologue" and is_patched() and _are_modules_themselves():
        trace = read_by_steps(trace)
    return original(trace, *args, **options)


def _are_modules_themselves() -> bool:
    """True if what a program reads of its compiled modules are members of the modules."""
    data = get_compile_data()
    return data is not None and all(
        type(module) is CompiledModule for module in data._thunder_module_map.values()
    )


def register() -> None:
    """Patch what Thunder makes a prologue of."""
    thunder.transform_for_execution = partial(_transformed, thunder.transform_for_execution)
