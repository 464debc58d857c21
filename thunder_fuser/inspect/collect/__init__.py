"""Collection of the data of a report from traces and plans."""
