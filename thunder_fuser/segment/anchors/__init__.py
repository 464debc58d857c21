"""Anchors: values that are assigned to kernels, their dependencies, and what is cut."""
