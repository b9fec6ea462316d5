"""Data shipped with opscope: one real trace, so that every command can be tried without a GPU.

What the trace is and how it was recorded: README.md beside this file.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["example_trace"]


def example_trace() -> Path:
    """Path of a Kineto trace recorded on an NVIDIA H200: three steps of BERT-base inference in fp32."""
    return Path(str(files(__name__) / "bert_h200.json.gz"))
