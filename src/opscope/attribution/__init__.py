"""Who caused what: pure functions on integer arrays, shared by every reader of traces.

Intervals are half-open `[start, end)` in int64 nanoseconds. Nothing here knows a file format or a database,
and every result conserves time exactly.
"""
