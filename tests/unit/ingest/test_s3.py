"""Ranks in a bucket of S3: served by moto on this machine, as by any store with that interface."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import opscope
from opscope.errors import InputError
from opscope.testing import TraceBuilder

pytest.importorskip("moto", reason="needs moto[server]")
s3fs = pytest.importorskip("s3fs", reason="needs s3fs")

RANKS = 3
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rank(number: int) -> TraceBuilder:
    trace = TraceBuilder(distributedInfo={"rank": number, "world_size": RANKS, "backend": "nccl"})
    trace.step(1, 0, 400).operator("aten::mm", 10, 20).launch(12).kernel("gemm", 40, 100 + number)
    return trace.launch(30).kernel(NCCL, 120, 60, stream=9)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Address of a bucket with the ranks of a job, gzipped, and with what is no trace."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        store = s3fs.S3FileSystem(skip_instance_cache=True)
        _when_it_answers(lambda: store.mkdir("job"))
        for number in range(RANKS):
            store.pipe(f"job/run/rank{number}.json.gz", gzip.compress(rank(number).text().encode()))
        store.pipe("job/run/notes.txt", b"no trace")
        store.pipe("job/empty/notes.txt", b"no trace")
        yield "s3://job/run"
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        server.terminate()
        server.wait()


def _when_it_answers(action) -> None:
    for _ in range(100):
        try:
            action()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError("moto did not start")


TOLD = "SELECT rank, world_size, source FROM traces ORDER BY rank"
KERNELS = "SELECT trace_id, start_ns, duration_ns, operator_id, step FROM device_activities ORDER BY ALL"


def test_a_folder_a_pattern_and_a_file(bucket: str) -> None:
    told = [(number, RANKS, f"{bucket}/rank{number}.json.gz") for number in range(RANKS)]
    assert opscope.load(bucket).query(TOLD) == told
    assert opscope.load(f"{bucket}/rank*.json.gz").query(TOLD) == told
    assert opscope.load(f"{bucket}/rank1.json.gz").query(TOLD) == told[1:2]


@pytest.mark.exhaustive
def test_processes_read_a_bucket_as_one_does(bucket: str) -> None:
    said: list[str] = []
    together = opscope.load(bucket, workers=2, note=said.append)
    assert together.query(KERNELS) == opscope.load(bucket).query(KERNELS)
    assert not said


def test_overlap_of_ranks_in_a_bucket(bucket: str) -> None:
    assert [one.rank for one in opscope.overlap(bucket)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("place", "says"),
    [("s3://job/none", "no such file"), ("s3://job/empty", "no trace"), ("s3://nowhere/run", "no such file")],
)
def test_what_is_not_there_is_an_error(bucket: str, place: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        opscope.load(place)
