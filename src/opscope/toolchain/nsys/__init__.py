"""Nsight Systems: its commands written and run, to record a program and to export a report.

Knows nothing of what an export holds: `ingest.nsys_reading` reads it.
"""
