"""`nvfuser_version` and `nvfuser_direct_version`: version strings that compare numerically."""

from torch.torch_version import TorchVersion as Version

from thunder_fuser.frontends.definition import version

__all__ = ["Version", "__version__"]

__version__ = version()
