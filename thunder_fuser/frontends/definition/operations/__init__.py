"""Operations of a definition, one file per family; `ops.py` is `fd.ops`."""
