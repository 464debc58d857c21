"""What may become part of a fusion: a row for each Thunder primitive."""
