"""Claims: the Thunder prims and calls that can be part of a fusion, one table row each."""
