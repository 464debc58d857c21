"""Printers of kernel IR: the only place that knows a language, and no template."""
