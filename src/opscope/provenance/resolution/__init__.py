"""From names to sources: what every kernel and operator of a Session is, and how that is known.

`annotate(session)` is the one entry: it fills the provenance tables of a Session from all evidence at hand.
"""

from opscope.provenance.resolution.annotate import annotate, session_of_names

__all__ = ["annotate", "session_of_names"]
