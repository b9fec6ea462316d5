"""From a recorded trace to the tables of a Session.

`reader.load` is the one entrance. No event is ever a Python object: the text of the `traceEvents` array goes
through windows into DuckDB, and only narrow integer columns come back as arrays to be linked.
"""
