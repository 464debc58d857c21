"""Cutting a fusion into kernels: the plan."""
