"""Trace analyses and trace passes: SSA names, aliases, result types, origins, RNG state."""
