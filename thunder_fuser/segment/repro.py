"""Reproduction script of a fusion: its definition, inputs of given layouts, and a comparison with
torch. To run, to shrink, or to attach to a report.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder_fuser.analysis.layout import layouts_of_inputs
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion, GatherOp, Scalar, TensorView
from thunder_fuser.ir.printer import to_python

_NUMBERS = {
    DataType.Bool: "True",
    DataType.Int: "2",
    DataType.Double: "0.5",
    DataType.ComplexDouble: "complex(0.5, 0.25)",
}


def script(fusion: Fusion, title: str, device: str, layouts: Sequence[Layout] | None = None) -> str:
    """Return Python that defines a static fusion, runs it on random inputs and compares with torch.

    `layouts`: those of its tensor inputs (default: as declared).
    """
    known = layouts_of_inputs(fusion, layouts)
    lines = []
    for value in fusion.inputs:
        if isinstance(value, Scalar):
            lines.append(f"    {_NUMBERS[value.dtype]},")
        else:
            where = "cpu" if value.is_cpu else device
            lines.append(f"    {_tensor(value, known[value], where, _elements(fusion, value))},")
    inputs = "\n".join(lines)
    return (
        f'"""{title}"""\n\n'
        "import torch\n\n"
        "from thunder_fuser import DataType, FusionDefinition\n\n\n"
        f"{to_python(fusion)}\n\n"
        "with FusionDefinition() as fd:\n"
        "    nvfuser_fusion(fd)\n\n"
        f"inputs = [\n{inputs}\n]\n"
        "fd.validate(inputs)\n"
    )


def _tensor(tensor: TensorView, layout: Layout, device: str, elements: str) -> str:
    """Return code of a random tensor with the strides of the layout, from an aligned address."""
    sizes = tuple(int(d.size) for d in tensor.domain.root)
    strides = tuple(int(s) for s in layout.strides)
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    span = 0 if 0 in sizes else 1 + last
    made = f"({span},), dtype={tensor.dtype.torch}, device={device!r}{elements}"
    return f"torch.testing.make_tensor({made}).as_strided({sizes}, {strides})"


def _elements(fusion: Fusion, tensor: TensorView) -> str:
    """Return the arguments for the range of random elements; possible indices are in range."""
    if tensor.dtype.is_floating or tensor.dtype.is_complex:
        return ", low=-1, high=1"
    extents = [e.input.sizes[e.dim] for e in fusion.exprs if isinstance(e, GatherOp)]
    # Operands of calls may be indices; 0 is valid for every call.
    extents += [1 for results in fusion.calls().values() if tensor in results[0].inputs]
    return f", low=0, high={int(min(extents))}" if extents and tensor.dtype.is_integral else ""
