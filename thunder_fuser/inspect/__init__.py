"""Reports on a compiled program: HTML page, text, JSON, and comparison with another program.
May import all other packages; no compiler package imports it.
"""

from thunder_fuser.inspect.reporting import Report, report

__all__ = ["Report", "report"]
