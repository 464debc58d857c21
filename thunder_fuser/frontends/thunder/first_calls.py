"""Joint compilation of the kernels of a trace's fusions at the first call of one of them.

A fusion is compiled for the strides of its inputs, hence when it is called. Strides are predicted
where that is safe: arguments, matrix products and results of fusions are mostly row-major. Other
torch calls may return any layout, and so may autograd's incoming gradients. A fusion with a wrong
prediction is compiled at its call. Backward fusions are compiled when one of them is first called,
as the backward may never run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import unvariableify
from thunder.core.symbol import BoundSymbol

from thunder_fuser.codegen.kernel import Kernel
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.thunder.regions.formation import Region, RegionCandidate
from thunder_fuser.frontends.thunder.symbol import call_of
from thunder_fuser.log import Pieces
from thunder_fuser.runtime.compilation.ahead import compile_ahead
from thunder_fuser.runtime.fork import Lock

_log = logging.getLogger(__name__)

_ARGUMENTS = frozenset({PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE})
_PRODUCTS = frozenset({"linear", "matmul"})
_KEEPS = frozenset({"reshape"})
"""Names of torch calls whose result is row-major if their operands are."""


def compile_together(
    parts: Sequence[RegionCandidate],
    regions: Mapping[int, Region],
    calls: Mapping[int, BoundSymbol],
) -> None:
    """Arrange that fusions of the forward, and those of the backward, are compiled together at
    their first call. `regions` and `calls` are keyed by the position of their part.
    """
    unknown = _in_any_layout(parts)
    fusions: dict[CompiledFusion, tuple[bool, torch.device]] = {}
    foreseen: set[CompiledFusion] = set()
    for k, bsym in calls.items():
        call, place = call_of(bsym), parts[k].place
        assert call is not None
        assert place is not None
        fusions.setdefault(call.compiled, (place.is_backward, call.device))
        if unknown.isdisjoint(unvariableify(x).name for x in regions[k].inputs):
            foreseen.add(call.compiled)
    among = Pieces("compiling", total=len(fusions))
    first = {
        phase: _FirstCalls(
            {f: where for f, (own, where) in fusions.items() if own is phase and f in foreseen}
        )
        for phase in (False, True)
    }
    for fusion, (phase, _) in fusions.items():
        fusion.among, fusion.ahead = among, first[phase]


def _in_any_layout(parts: Sequence[RegionCandidate]) -> frozenset[str]:
    """Return names of tensors from outside of fusions that may not be row-major."""
    found: set[str] = set()
    for bsym in (b for part in parts if not part.is_fusible for b in part.symbols):
        if bsym.sym.id in _ARGUMENTS or bsym.sym.name in _PRODUCTS:
            continue
        if bsym.sym.name in _KEEPS and found.isdisjoint(p.name for p in bsym.flat_proxy_args):
            continue
        found.update(p.name for p in bsym.flat_proxy_outs)
    return frozenset(found)


class _FirstCalls:
    """Hook that runs before one of several fusions is compiled: the first call compiles all."""

    def __init__(self, fusions: Mapping[CompiledFusion, torch.device]) -> None:
        self._lock = Lock()
        self._waiting = dict(fusions)

    def __call__(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        programs: dict[torch.device, list[tuple[Kernel, ...]]] = {}
        if len(waiting) > 1:
            for fusion, device in waiting.items():
                try:
                    programs.setdefault(device, []).append(fusion.foresee(device))
                except Exception as error:
                    _log.info("%s is written when it is called: %s", fusion.name, error)
        for device, found in programs.items():
            try:
                compile_ahead(found, device)
            except Exception as error:
                _log.info("the fusions on %s are compiled one by one: %s", device, error)
