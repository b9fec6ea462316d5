"""Exports of Nsight Systems (`nsys export --type sqlite`) → the tables a Kineto trace fills.

SQLite's own module reads the file, in chunks that become columns; from there on the statements and the
attribution are those of Kineto traces. What an export of another version lacks is NULL and named in a
finding. An export may hold several processes: each that called CUDA becomes a trace.
"""

from opscope.ingest.nsys.export import is_export
from opscope.ingest.nsys.kernel_texts import Demangle
from opscope.ingest.nsys.reading import read_export

__all__ = ["Demangle", "is_export", "read_export"]
