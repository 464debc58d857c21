"""Reports: a program as one page, as text, as data, and beside another one. Reads everything;
nothing that it reports on imports it.
"""

from thunder_fuser.inspect.reporting import Report, report

__all__ = ["Report", "report"]
