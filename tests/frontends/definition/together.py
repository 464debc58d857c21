"""Definitions whose kernels are compiled as one program, each with the expected result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.support.batch import Batch, executable
from tests.support.inputs import copy_of
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.definition import FusionDefinition


class Together:
    """`add` definitions, then `check` all of them at once."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self._batch = Batch(self.device)
        self._runs: list[tuple[Any, list[Any], list[torch.Tensor], float]] = []

    def add(
        self,
        fd: FusionDefinition,
        inputs: Sequence[Any],
        expected: Sequence[torch.Tensor],
        tolerance: float = 1e-5,
    ) -> None:
        given = [copy_of(x, self.device) if isinstance(x, torch.Tensor) else x for x in inputs]
        run = executable(CompiledFusion(fd.fusion), given, self._batch, self.device)
        self._runs.append((run, given, list(expected), tolerance))

    def check(self) -> None:
        for run, inputs, expected, tolerance in self._runs:
            found = run(inputs)
            assert len(found) == len(expected)
            for output, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(
                    output.cpu(), wanted.cpu(), rtol=tolerance, atol=tolerance, equal_nan=True
                )
