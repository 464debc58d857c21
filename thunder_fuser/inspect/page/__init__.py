"""HTML page of a program."""
