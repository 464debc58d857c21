"""Layouts of boundary tensors, and copies in the order of a reduction."""
