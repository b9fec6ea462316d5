"""Timing callables without a profiler. Imports torch lazily; independent of ingest and capture."""
