"""Segmentation of a fusion into kernels: the plan."""
