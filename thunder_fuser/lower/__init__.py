"""Fusion -> scalar graph: values pulled at points, vectorised accesses, row programs."""
