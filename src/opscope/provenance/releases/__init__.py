"""What is packaged of PyTorch releases: which source file each of their kernels comes from.

A trace shows kernel names; `recognize` finds the release they belong to, `kernel_units` the files, with the
grade of the evidence. Tables hold facts read from the published binaries (`tools/torch_tables`).
"""

from __future__ import annotations

from opscope.provenance.releases.catalog import git_version, release, release_versions
from opscope.provenance.releases.recognition import Recognition, UnitAnswer, kernel_units, recognize

__all__ = [
    "Recognition",
    "UnitAnswer",
    "git_version",
    "kernel_units",
    "recognize",
    "release",
    "release_versions",
]
