"""Memory of a trace: order and splits of regions, what a forward saves, what is computed again."""
