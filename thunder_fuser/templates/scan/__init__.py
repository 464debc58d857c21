"""Scan kernels: prefix reductions along the rows."""
