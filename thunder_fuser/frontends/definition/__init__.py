"""Fusions written by hand, through nvFuser's Python API.

from thunder_fuser.frontends.definition import FusionDefinition, DataType
"""

from torch.torch_version import TorchVersion

from thunder_fuser.frontends.definition.executor_cache import FusionCache, LRUCache, LruFusionCache
from thunder_fuser.frontends.definition.fusion_definition import FusionDefinition, ops
from thunder_fuser.frontends.definition.profile import PythonProfiler
from thunder_fuser.frontends.definition.recording.descriptor import (
    compute_contiguity,
    compute_tensor_descriptor,
)
from thunder_fuser.frontends.definition.recording.values import Scalar, Tensor, TensorView, Val
from thunder_fuser.ir.dtypes import DataType

__all__ = [
    "DataType",
    "FusionCache",
    "FusionDefinition",
    "LRUCache",
    "LruFusionCache",
    "PythonProfiler",
    "Scalar",
    "Tensor",
    "TensorView",
    "Val",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "ops",
    "version",
]


def version() -> str:
    """The nvFuser version whose Python API is followed; compares like a version number."""
    found: str = TorchVersion("0.2.34")
    return found
