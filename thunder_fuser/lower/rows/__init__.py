"""Rows of reduction and scan kernels: iteration spaces, legality, and programs over them."""
