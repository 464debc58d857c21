"""Transpose kernels: tiles that are turned in shared memory."""
