"""nvFuser's multi-device API, and the program of each rank."""
