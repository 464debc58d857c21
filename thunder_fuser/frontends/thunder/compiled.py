"""Thunder-compiled functions of a `thunder.jit`, `thunderfx` or `ThunderCompiler` object.

`thunder.jit` returns one such function; `thunderfx`, and a `ThunderCompiler` as the backend of
`torch.compile`, hold one for each Dynamo graph that Thunder can run.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import thunder
from thunder.core.trace import TraceCtx

from thunder_fuser.errors import FuserTypeError, FuserValueError

Compiled = Callable[..., Any]


def compiled_functions(of: Any) -> list[Compiled]:
    """Return the compiled functions, at least one, in the order of their compilation.

    Raises FuserTypeError for an object that Thunder did not compile, FuserValueError before its
    first run.
    """
    if thunder.compile_stats(of) is not None:
        return [of]
    backend = getattr(of, "_backend", of)
    graphs = getattr(backend, "subgraph_infos", None)
    if graphs is None:
        raise _not_compiled(of)
    found = [f for graph in graphs for f in graph.thunder_compiled_fns or ()]
    if not graphs:
        raise FuserValueError(f"{of!r} has not been called yet: its graphs are made by a call")
    if not found:
        reasons = [str(r) for graph in graphs for r in graph.split_reasons or ()]
        raise FuserValueError(
            f"Thunder runs no graph of {of!r}{': ' if reasons else ''}{'; '.join(reasons)}"
        )
    return found


def stages(fn: Compiled) -> tuple[Sequence[TraceCtx], Sequence[TraceCtx]]:
    """Return the traces of the last used cache entry after each of Thunder's passes: forward, and
    backward (empty if there is none).
    """
    stats = thunder.compile_stats(fn)
    if stats is None:
        raise _not_compiled(fn)
    if not stats.last_traces:
        raise FuserValueError(f"{fn!r} has not been called yet: its traces are made by a call")
    # Thunder updates the last backward traces only when it compiles, so take the entry's own.
    for entry in stats.interpreter_cache:
        if entry.computation_traces is stats.last_traces:
            return stats.last_traces, entry.backward_traces or ()
    return stats.last_traces, stats.last_backward_traces or ()


def last_traces(fn: Compiled) -> tuple[TraceCtx, TraceCtx | None]:
    """Return the final forward and backward traces of the last used cache entry."""
    forward, backward = stages(fn)
    return forward[-1], backward[-1] if backward else None


def all_traces(of: Any) -> list[TraceCtx]:
    """Return the final traces of every compiled function: forward, then backward."""
    pairs = [last_traces(fn) for fn in compiled_functions(of)]
    return [trace for pair in pairs for trace in pair if trace is not None]


def _not_compiled(of: Any) -> FuserTypeError:
    return FuserTypeError(
        f"{reprlib.repr(of)} was not made by thunder.jit, thunder.compile or thunderfx; pass fn = "
        "thunder.jit(f, executors=[thunder_fuser.executor]) after a call, or, for a function of "
        "torch.compile(f, backend=b) with b = ThunderCompiler(..), pass b"
    )
