"""Random programs of `FusionDefinition`: every operation of `fd.ops`, open sizes, several calls."""
