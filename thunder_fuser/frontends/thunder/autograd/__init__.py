"""Calls that stay whole forward and backward, and gradients as torch's kernels compute them."""
