"""Memory of a fusion for Thunder's estimate: what it allocates, and when it is free.

Left to itself, the estimate counts every result.  A result that lies in the memory of an argument
or of another result takes none, and shares the life of what it lies in.

Between its kernels a fusion may hold more than its results: boundaries, and values that are copied
into an argument at the end.  Thunder's interface takes one number a symbol, the bytes that it adds
for good, so its peak does not have them; the table that comes with the peak does, as an entry of
its own.
"""

from __future__ import annotations

from typing import Any

from thunder.core.symbol import BoundSymbol
from thunder.examine.memory_calculation import MemoryData, register_memory_calculate_function

from thunder_fuser.frontends.thunder.call import FusionCall


def register_memory(identity: str) -> None:
    """Have fusions whose symbols have this id estimated here."""
    register_memory_calculate_function(identity)(_allocated)


def _allocated(bsym: BoundSymbol, memory: Any, report: dict[str, int]) -> int:
    """Bytes allocated by the call; `memory` maps proxies to reference counts."""
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
