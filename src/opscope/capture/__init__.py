"""Recording running programs as Kineto traces with a sidecar each. Imports torch lazily.

Independent of ingest and bench: what it leaves behind are files.
"""
