"""Processes of a mesh: ranks of torch.distributed on this machine, which meet in a file."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support import forked

SECONDS = 400
PATIENCE = timedelta(seconds=120)
"""How long a rank waits for another one."""


def together(module: str, size: int, folder: Path, backend: str = "gloo") -> str:
    """What `python -m module SIZE FILE BACKEND` prints, which becomes as many ranks. All must end
    well.
    """
    ranks = forked.run_module(module, str(size), str(folder / "meeting"), backend, seconds=SECONDS)
    assert ranks.returncode == 0, ranks.stdout + ranks.stderr
    return ranks.stdout


def become_ranks(check: Callable[[int, int], None]) -> None:
    """Fork one process a rank, before torch has threads: what all import is imported once. Each
    joins the others and runs `check(rank, size)`.
    """
    size, (file, backend) = int(sys.argv[1]), sys.argv[2:]
    children = []
    for rank in range(size):
        child = os.fork()
        if child:
            children.append(child)
            continue
        status = 1
        try:
            join(rank, size, file, backend)
            check(rank, size)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(any(ended))


def join(rank: int, size: int, file: str, backend: str) -> None:
    """Become one of the ranks."""
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=f"file://{file}", rank=rank, world_size=size, timeout=PATIENCE
    )


def device() -> torch.device:
    """Where this rank's tensors are."""
    is_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", dist.get_rank()) if is_gpu else torch.device("cpu")
