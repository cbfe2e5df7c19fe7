"""Reports: records and studies as panels, and panels as a page that needs no network, figures and text. Nothing here trains."""

from rewa.record import Run, read
from rewa.report.comparison import to_markdown, to_plain, write
from rewa.report.tables import Comparison, compare

__all__ = ["Comparison", "Run", "compare", "read", "to_markdown", "to_plain", "write"]
