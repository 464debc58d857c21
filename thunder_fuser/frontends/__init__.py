"""Ways in: Thunder traces and fusion definitions, both to the same Fusion."""
