"""Recording of a definition: inputs, outputs and operands become a Fusion."""
