"""Pointwise kernels: groups of outputs over the same points, vectors along the innermost axis."""
