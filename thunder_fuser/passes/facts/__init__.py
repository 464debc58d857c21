"""Facts about values for passes: uniform values, absence of -0.0, exact conversions."""
