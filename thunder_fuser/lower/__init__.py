"""Lowering of a fusion: scalar graphs, vectorised accesses, row and scan programs."""
