"""Recompute or store: minimum cuts that choose boundary tensors and recomputed values."""
