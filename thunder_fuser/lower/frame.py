"""What the parts of one kernel have in common while they are lowered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, TensorView, Val
from thunder_fuser.lower.kernel_ir import Comment

Buffers = Mapping[TensorView, TensorView]
"""An output that is written in place -> its input."""


@dataclass(frozen=True, slots=True)
class Frame:
    """
    index        the type of indices
    buffers      whose memory an output is written to, where that is not its own
    definitions  what computes a tensor, for comments that name the user's lines
    """

    index: DataType
    buffers: Buffers
    definitions: Mapping[Val, Expr] = field(default_factory=dict)

    def section(self, text: str, *tensors: TensorView) -> Comment:
        """The head of the statements that compute some tensors.

        The user's lines are beside the text, not in it: equal programs of different lines, and of
        different machines, have one kernel.
        """
        lines: dict[str, None] = {}
        for tensor in tensors:
            expr = self.definitions.get(tensor)
            if expr is not None and expr.origin.file:
                lines[f"{Path(expr.origin.file).name}:{expr.origin.line}"] = None
        return Comment(text, ", ".join(lines))
