"""Program: the plain data of a report, and its summaries by source line, layer and refusal."""
