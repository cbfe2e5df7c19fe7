"""Reports: the records of runs as tables, figures and one page that needs no network. Nothing here trains."""

from rewa.record import Run, read
from rewa.report.page import write
from rewa.report.tables import Comparison, compare
from rewa.report.text import to_markdown, to_plain

__all__ = ["Comparison", "Run", "compare", "read", "to_markdown", "to_plain", "write"]
