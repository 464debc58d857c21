"""Grad transforms: attention and convolutions left whole, gradients that match torch's kernels."""
