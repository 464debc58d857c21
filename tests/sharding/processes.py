"""Processes of a mesh: ranks of torch.distributed on this machine, which meet in a file."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 180
PATIENCE = timedelta(seconds=60)
"""How long a rank waits for another one."""


def together(module: str, size: int, folder: Path, *more: str) -> None:
    """Run `python -m module RANK SIZE FILE ...` once a rank. Each must print "done" at its end."""
    command = [sys.executable, "-m", module]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder / "meeting"), *more],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        told = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [text.splitlines()[-1:] for text in told] == [["done"]] * size, "\n".join(told)


def join(rank: int, size: int, file: str, backend: str = "gloo") -> None:
    """Become one of the ranks."""
    dist.init_process_group(
        backend, init_method=f"file://{file}", rank=rank, world_size=size, timeout=PATIENCE
    )
    torch.set_num_threads(1)
