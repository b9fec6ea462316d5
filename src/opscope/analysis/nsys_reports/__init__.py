"""The statistics reports of Nsight Systems, from any Session: same rows, same columns, same rounding."""

from opscope.analysis.nsys_reports.reports import REPORTS, Report, ReportTable, report_tables

__all__ = ["REPORTS", "Report", "ReportTable", "report_tables"]
