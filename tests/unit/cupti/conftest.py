"""The fake CUDA, built once, and recordings written by hand."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opscope.cupti.recording import RECORDS, CuptiRecording, FileState, Outcome, TextTable

START_NS = 1_790_857_026_000_000_000


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory):
    build = runpy.run_path(str(Path(__file__).parent / "fake_cuda.py"))["build_fake_cuda"]
    return build(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture
def make_recording():
    """A recording of records given as dicts by kind, and texts by table."""

    def make(records=None, names=None, outcome=None, **more):
        arrays = {
            kind: np.zeros(len((records or {}).get(kind, [])), dtype) for kind, dtype in RECORDS.items()
        }
        for kind, rows in (records or {}).items():
            for index, row in enumerate(rows):
                for field, value in row.items():
                    arrays[kind][field][index] = value
        recording = CuptiRecording(
            path=Path("4711.0.cuda"), process=4711, parent_process=1, program="/home/user/add",
            command=("./add",), start_ns=START_NS, start_realtime_ns=START_NS, end_ns=START_NS + 1_000_000,
            cupti_version=130_001, cupti_path="/usr/lib/libcupti.so.13", driver_version=13_000,
            outcome=outcome or Outcome(FileState.ENDED), records=arrays,
            names={table: (names or {}).get(table, {}) for table in TextTable}, maps="",
        )  # fmt: skip
        return replace(recording, **more)

    return make
