"""Changes applied to a user's program, each measured without a profiler and checked for what it changes."""
