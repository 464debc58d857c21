"""Partition of anchors into kernels: the cost model, and the search for the cheapest one."""
