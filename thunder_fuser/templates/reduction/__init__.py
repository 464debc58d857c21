"""Reduction kernels: rows reduced by threads, warps, blocks or grids; persistent where they fit."""
