"""Regions of a trace, each of which becomes a fusion: formation, updates in place, views."""
