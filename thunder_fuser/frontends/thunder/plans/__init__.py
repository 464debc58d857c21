"""Plans of compiled functions: of each fusion, of whole traces, on a mesh; as text and tables."""
