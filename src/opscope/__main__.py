"""`opscope` and `python -m opscope`: the command line."""

import sys


def entry_point() -> None:
    """Run the command line of this process and exit."""
    try:
        from opscope.cli import entry_point as run  # noqa: PLC0415 - Ctrl-C may come before all is imported
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    entry_point()
