"""The meta tensor that links the two autograd functions of a call in training.

Thunder makes it with `torch.randn`, forward and backward. The meta kernel of that is written in
Python and takes as long as a small kernel and its launch; only metadata is read, and `torch.empty`
gives the same.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from thunder.executors import torch_autograd


class _Torch(ModuleType):
    """torch, in which `randn` draws nothing."""

    randn = staticmethod(torch.empty)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def register() -> None:
    """Replace torch where Thunder connects its functions to autograd, which draws nothing else."""
    torch_autograd.torch = _Torch(torch.__name__)
