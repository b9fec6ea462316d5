"""The command line: one module per verb, errors mapped to exit codes in one place.

Only this layer prints and exits. Verbs are imported when they are called: `opscope --help` stays fast.
"""

from opscope.cli.app import entry_point, main

__all__ = ["entry_point", "main"]
