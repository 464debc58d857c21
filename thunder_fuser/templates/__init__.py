"""Kernel templates: which one takes a segment, and how. Segment -> schedule."""
