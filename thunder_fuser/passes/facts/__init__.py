"""What passes know of values: one number everywhere, no negative zero, exact conversions."""
