"""Transpose kernels: tiles staged in shared memory, where loads and stores disagree on the
innermost dimension.
"""
