"""`python -m opscope`: the command line."""

from opscope.cli import entry_point

if __name__ == "__main__":
    entry_point()
