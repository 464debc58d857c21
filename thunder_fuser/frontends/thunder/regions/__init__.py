"""Regions of a trace, which become fusions: formation, in-place updates, joint graph."""
