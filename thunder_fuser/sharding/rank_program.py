"""Programs of one rank among others, which wait in its collectives: no rank may fail alone.

Ranks that run a program for the first time agree on it: each says which tensors it is for, which
collectives it runs and which whole program they belong to, or why it could not be prepared. If they
differ, all of them raise. Kernels that a rank cannot prepare later are left to torch on that rank,
where the program has the same collectives in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import current
from thunder_fuser.errors import FuserError
from thunder_fuser.ir.fusion import Fusion, OpaqueOp
from thunder_fuser.ir.tables import opaque
from thunder_fuser.ir.tables.collectives import OF_A_RANK, Communicator
from thunder_fuser.runtime.binding.modes import without_modes
from thunder_fuser.runtime.executable import Executable
from thunder_fuser.runtime.fallback import is_replaceable, warn_of_failure, warn_of_scarcity
from thunder_fuser.runtime.scarcity import is_passing
from thunder_fuser.segment.plan import counted
from thunder_fuser.sharding.mesh import DeviceMesh

_TEXT = 512
"""Bytes of what a rank tells the others."""
_FAILED = "!"


class RankProgram:
    """The fusion of one rank: its kernels, or torch's operations if they cannot be prepared.

    After an error that may pass, such as a full disk, the next call tries again.
    """

    def __init__(self, fusion: Fusion, name: str) -> None:
        self.compiled = CompiledFusion(fusion, name)
        self._in_torch = False

    def prepare(self, inputs: Sequence[Any]) -> Executable | None:
        """Compile for the inputs; None if torch runs them. Raises for inputs that do not fit, and
        for everything under the option `strict`.
        """
        if self._in_torch:
            return None
        try:
            return self.compiled.executable_for(inputs)
        except Exception as error:
            if current().strict or not is_replaceable(error):
                raise
            if is_passing(error):
                warn_of_scarcity(self.compiled.name, error)
            else:
                self._in_torch = True
                warn_of_failure(self.compiled.name, error, "")
        return None

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on the rank's shards. A collective."""
        executable = self.prepare(inputs)
        return self.compiled.in_torch(inputs) if executable is None else executable(inputs)

    @property
    def digest(self) -> str:
        """Digest of the collectives that the program runs, equal on all ranks."""
        calls = (e for e in self.compiled.fusion.exprs if isinstance(e, OpaqueOp))
        # Without names of tensors: ranks differ in what is between collectives.
        sent = [
            (e.op, [(x.dtype.name, x.sizes) for x in e.inputs], _of_all_ranks(e.attributes))
            for e in calls
            if opaque.lookup(e.op).is_collective
        ]
        digest = hashlib.sha256(repr(sent).encode()).hexdigest()[:12]
        return f"{counted(len(sent), 'collective')} {digest}"


def agree(
    communicator: Communicator,
    mesh: DeviceMesh,
    inputs: Sequence[Any],
    prepare: Callable[[], str],
) -> None:
    """Prepare what all ranks run with inputs like these, and compare what `prepare` tells of it. A
    collective.

    Raises what `prepare` raises; FuserError if it raised on another rank, or told otherwise.
    """
    failure: Exception | None = None
    try:
        told = _fitting(prepare())
    except Exception as error:
        failure, told = error, f"{_FAILED}{type(error).__name__}: {error}"
    device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), None)
    every = _exchanged(communicator, mesh, told, device)
    if failure is not None:
        raise failure
    _compare(every)


def _fitting(text: str) -> str:
    """Replace the end of a text that does not fit by the digest of the whole text."""
    if len(text.encode()) <= _TEXT:
        return text
    digest = f"... {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return text.encode()[: _TEXT - len(digest)].decode(errors="ignore") + digest


def _compare(every: Sequence[str]) -> None:
    """Raise FuserError unless all ranks tell the same."""
    failed = [k for k, told in enumerate(every) if told.startswith(_FAILED)]
    if failed:
        first = failed[0]
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise FuserError(
            f"rank {first}{others} could not prepare its program, so that none runs: "
            f"{every[first].removeprefix(_FAILED)}"
        )
    other = next((k for k, told in enumerate(every) if told != every[0]), None)
    if other is not None:
        raise FuserError(
            f"the ranks would run different programs: rank 0 for {every[0]}; rank {other} for "
            f"{every[other]}. All of them must run one program with their parts of the same tensors"
        )


def _exchanged(
    communicator: Communicator, mesh: DeviceMesh, text: str, device: torch.device | None
) -> list[str]:
    """Return the texts of all ranks, in their order, as far as they fit. A collective."""
    data = text.encode()[:_TEXT].ljust(_TEXT)
    with without_modes():
        found = torch.tensor(list(data), dtype=torch.uint8, device=device)
        for axis in reversed(range(len(mesh.shape))):
            found = communicator.all_gather(found, axis).wait()
        rows = found.reshape(mesh.size, _TEXT).tolist()
    return [bytes(row).decode(errors="replace").rstrip() for row in rows]


def _of_all_ranks(attributes: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in attributes if name not in OF_A_RANK]
