"""Memory of a fusion for Thunder's memory estimate: bytes allocated, and their lifetime.

By default the estimate counts every result.  A result that aliases an argument or another result
takes no memory, and shares the lifetime of its base.

Between its kernels a fusion may hold more than its results: boundary tensors, and values that are
copied into an argument at the end.  Thunder's interface takes one number per symbol, the bytes that
remain allocated, so its peak omits them; the table that comes with the peak lists them as a
separate entry.
"""

from __future__ import annotations

from typing import Any

from thunder.core.symbol import BoundSymbol
from thunder.examine.memory_calculation import MemoryData, register_memory_calculate_function

from thunder_fuser.frontends.thunder.call import FusionCall


def register_memory(identity: str) -> None:
    """Register the memory estimate for fusions with this symbol id."""
    register_memory_calculate_function(identity)(_allocated)


def _allocated(bsym: BoundSymbol, memory: Any, report: dict[str, int]) -> int:
    """Return the bytes that a call allocates; `memory` maps proxies to reference counts."""
    call: FusionCall = bsym._call_ctx[bsym.sym.name]
    proxies = [*bsym.args, *bsym.output]
    first = len(bsym.args)
    fresh = 0
    for k, owner in enumerate(call.owners(), first):
        proxy = proxies[k]
        if proxy is None or proxy in memory:
            continue
        if owner != k and proxies[owner] in memory:
            memory[proxies[owner]].incr_ref()
            memory[proxy] = memory[proxies[owner]]
        else:
            memory[proxy] = MemoryData(n=1, proxy=proxy)
            fresh += proxy.numel * proxy.dtype.bytes
    names = ", ".join(proxy.name for proxy in bsym.output if proxy is not None)
    report[f"{bsym.sym.name} {names}"] = fresh
    if (between := call.plan().peak_bytes - fresh) > 0:
        report[f"{bsym.sym.name} between its kernels"] = between
    return fresh
