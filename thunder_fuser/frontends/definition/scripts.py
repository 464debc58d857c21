"""Reproduction scripts: a definition and its inputs as a self-contained program.

Inputs are described, not stored: shape, strides, dtype, device and misalignment.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import thunder_fuser
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.printer import number_text, to_python


def reproduction(fusion: Fusion, inputs: Sequence[Any] | None) -> str:
    """The script; without inputs it ends with the definition.

    `inputs` includes the drawn RNG seed and offsets: the script passes these and draws none.
    """
    if inputs is not None:
        fusion = replace(fusion, draws=0)
    parts = [
        f"# thunder_fuser {thunder_fuser.__version__}, torch {torch.__version__}",
        "import torch",
        "from thunder_fuser import DataType, FusionDefinition",
        "",
        to_python(fusion),
        "with FusionDefinition() as fd:",
        "    nvfuser_fusion(fd)",
        "",
    ]
    if inputs is not None:
        lines = [f"    {_input(x)}," for x in inputs]
        parts += ["inputs = [", *lines, "]", "fd.execute(inputs)", ""]
    return "\n".join(parts)


def faked(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with fake tensors in place of tensors."""
    mode = FakeTensorMode()
    return [
        mode.from_tensor(x.detach())
        if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)
        else x
        for x in inputs
    ]


@contextmanager
def captured_logs() -> Iterator[io.StringIO]:
    """Redirect this package's log output from stderr to a text buffer."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
    root = logging.getLogger(thunder_fuser.__name__)
    before, propagates = root.handlers[:], root.propagate
    root.handlers[:], root.propagate = [handler], False
    try:
        yield text
    finally:
        root.handlers[:], root.propagate = before, propagates


def _input(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return number_text(x)
    skipped = 0 if isinstance(x, FakeTensor) else x.data_ptr() % 64 // x.itemsize
    if x.is_contiguous() and not skipped:
        return _random(x, str(tuple(x.shape)))
    strided = [(size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)]
    elements = skipped + (sum(strided) + 1 if x.numel() else 0)
    place = f"{tuple(x.shape)}, {tuple(x.stride())}"
    if skipped:
        place += f", {skipped}"
    return f"{_random(x, f'({elements},)')}.as_strided({place})"


def _random(x: torch.Tensor, shape: str) -> str:
    made = f'torch.testing.make_tensor({shape}, dtype={{}}, device="{x.device}")'
    if x.dtype.is_floating_point and x.itemsize == 1:
        return f"{made.format(torch.float32)}.to({x.dtype})"
    return made.format(x.dtype)
