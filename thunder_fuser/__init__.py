"""thunder_fuser: a fusion compiler for PyTorch programs, as a Lightning Thunder executor."""
