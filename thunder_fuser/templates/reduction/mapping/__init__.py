"""Thread mapping of a reduction kernel: which thread computes which rows and columns."""
