"""nvFuser's `multidevice`: device meshes, tensor sharding, and the communicator."""

from __future__ import annotations

import os

import torch

from thunder_fuser.frontends.definition.multidevice.api import (
    DeviceMesh,
    ParallelType,
    shard_tensor,
    this_rank,
)

__all__ = ["Communicator", "DeviceMesh", "ParallelType", "shard_tensor"]


class Communicator:
    """Rank and size of this process in torch.distributed, which the program initialises."""

    _shared: Communicator | None = None

    @classmethod
    def instance(cls) -> Communicator:
        """Return the singleton."""
        cls._shared = cls._shared or Communicator()
        return cls._shared

    def rank(self) -> int:
        return this_rank()

    def size(self) -> int:
        return torch.distributed.get_world_size() if self.is_available() else 1

    def local_rank(self) -> int:
        """Rank among the processes of this machine: `LOCAL_RANK` of torchrun, else the rank."""
        return int(os.environ.get("LOCAL_RANK", self.rank()))

    def local_size(self) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size()))

    def is_available(self) -> bool:
        """True if the default process group is initialised."""
        return bool(torch.distributed.is_available() and torch.distributed.is_initialized())

    def barrier(self) -> None:
        """Wait for all ranks; no-op without a process group."""
        if self.is_available():
            torch.distributed.barrier()
