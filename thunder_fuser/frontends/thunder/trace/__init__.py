"""Facts of a Thunder trace, and passes that make them plain: names, aliases, types, origins."""
