"""Regions of a trace, each of which becomes a fusion: formation, in-place updates, joint graph."""
