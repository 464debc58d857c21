"""Vectors: lanes of consecutive points, their wide accesses, and their statements."""
