"""Reports: what they say is what the traces and the plans say."""
