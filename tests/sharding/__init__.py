"""Sharding: placements, propagation, localisation, communication."""
