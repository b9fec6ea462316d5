"""From names to sources: what every kernel and operator of a Session is, and how that is known."""
