"""Fusions written by hand, through nvFuser's Python API.

from thunder_fuser.definition import FusionDefinition, DataType
"""

from thunder_fuser.definition.descriptor import compute_tensor_descriptor
from thunder_fuser.definition.fusion_definition import FusionDefinition, ops
from thunder_fuser.definition.values import Scalar, Tensor
from thunder_fuser.ir.dtypes import DataType

__all__ = [
    "DataType",
    "FusionDefinition",
    "Scalar",
    "Tensor",
    "compute_tensor_descriptor",
    "ops",
    "version",
]


def version() -> str:
    """The nvFuser version whose Python API this follows."""
    return "0.2.34"
