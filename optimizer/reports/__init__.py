"""Reports of results, sweeps and studies: a page, single charts, Markdown."""

from optimizer.reports.charts import chart
from optimizer.reports.inputs import ReportInputs, read_report_inputs
from optimizer.reports.markdown import markdown_report
from optimizer.reports.page import html_page

__all__ = ["ReportInputs", "chart", "html_page", "markdown_report", "read_report_inputs"]
