"""Scan kernels: rows walked from end to end, each element with what went before it."""
