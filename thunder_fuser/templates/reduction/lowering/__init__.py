"""Lowering of a scheduled reduction kernel to kernel IR."""
