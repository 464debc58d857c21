"""Context shared by the parts of one kernel during lowering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, TensorView, Val
from thunder_fuser.kernel_ir import Comment

Buffers = Mapping[TensorView, TensorView]
"""Output that is written in place -> the input whose memory it overwrites."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What all parts of a kernel's lowering share.

    index        integer type of indices
    buffers      tensor whose memory an output is written to, if not its own
    definitions  result -> expression, for comments that name lines of the user's program
    """

    index: DataType
    buffers: Buffers
    definitions: Mapping[Val, Expr] = field(default_factory=dict)

    def section(self, text: str, *tensors: TensorView) -> Comment:
        """Return the comment above the statements that compute some tensors.

        Source lines are kept next to the text, not in it, so that equal programs from different
        lines or machines have one kernel.
        """
        lines: dict[str, None] = {}
        for tensor in tensors:
            expr = self.definitions.get(tensor)
            if expr is not None and expr.origin.file:
                lines[f"{Path(expr.origin.file).name}:{expr.origin.line}"] = None
        return Comment(text, ", ".join(lines))
