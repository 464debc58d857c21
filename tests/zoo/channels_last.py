"""The kernels of a batch norm with channels last: statistics of columns, and rows normalised."""

from __future__ import annotations

from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.builder import FusionBuilder
from thunder_fuser.ir.fusion import Fusion


def column_statistics(rows: int = 1024, columns: int = 256) -> Fusion:
    """The sum of each column, and what its elements differ from their mean by, squared."""
    b = FusionBuilder()
    x = b.tensor([rows, columns], DataType.BFloat16)
    b.output(b.reduce("sum", x, [0]))
    b.output(b.reduce("squared_deviations", x, [0]))
    return b.build()


def normalized(
    rows: int, channels: int, *, statistics: DataType = DataType.Float, images: int = 1
) -> FusionDefinition:
    """(x - mean) * rstd * weight + bias."""
    with FusionDefinition() as fd:
        sizes = [images, rows, channels]
        x = fd.define_tensor(sizes, True, DataType.BFloat16)
        mean, rstd = (fd.define_tensor([channels], True, statistics) for _ in range(2))
        weight, bias = (fd.define_tensor([channels], True, DataType.BFloat16) for _ in range(2))
        mean, rstd, weight, bias = (
            fd.ops.broadcast_in_dim(t, sizes, [2]) for t in (mean, rstd, weight, bias)
        )
        scaled = fd.ops.mul(fd.ops.mul(fd.ops.sub(x, mean), rstd), weight)
        fd.add_output(fd.ops.cast(fd.ops.add(scaled, bias), DataType.BFloat16))
    return fd
