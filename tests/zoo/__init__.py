"""Model parts and programs that people run, each stated once."""
