"""Measured limits as files: written and read back, damaged ones refused, the newest of a GPU found."""

import json

import msgspec
import pytest

from case_tables import cases
from opscope.errors import InputError
from opscope.hardware import limits

L4 = {"device": "NVIDIA L4", "compute_capability": "8.9", "sm_count": 58, "memory_bytes": 23 * 2**30}


def damaged(make, **changes):
    document = msgspec.to_builtins(make(times={"launch": 2000.0}))
    for path, value in changes.items():
        *parents, last = path.split("__")
        holder = document
        for key in parents:
            holder = holder[int(key) if key.isdigit() else key]
        holder[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "version 2; 1 can be read"),
        ({"schema_version": "x"}, "holds no measured limits"),
        ({"device": None}, "holds no measured limits"),
        ({"rates__0__per_s": -1.0}, "holds no measured limits"),
        ({"times__0__median_ns": 0}, "holds no measured limits"),
        ({"rates__0__high_per_s": float("inf")}, "holds no measured limits"),
        ({"rates__0__unit": "furlongs"}, "holds no measured limits"),
    ],
)
def test_a_file_that_cannot_be_right(make_measured, tmp_path, changes, message):
    path = tmp_path / "limits.json"
    path.write_bytes(damaged(make_measured, **changes))
    with pytest.raises(InputError, match=message) as caught:
        limits.read_measured(path)
    assert str(path) in str(caught.value)
    usable, ignored = limits.read_folder(tmp_path)
    assert (usable, len(ignored)) == ([], 1)


def test_a_file_of_anything_else_or_cut_anywhere_is_never_half_used(make_measured, tmp_path):
    whole = limits.save_measured(tmp_path / "whole.json", make_measured()).read_bytes().rstrip()
    others = (b"{}", b"[]", b"\xff\xfe", b"{" * 5000, b'{"schema_version": 1}')
    path = tmp_path / "limits.json"
    for content in (*others, *(whole[:length] for length in range(0, len(whole), 7))):
        path.write_bytes(content)
        with pytest.raises(InputError):
            limits.read_measured(path)


def test_files_that_are_missing_or_folders(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        limits.read_measured(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        limits.read_measured(tmp_path)


def test_one_file_for_each_gpu_driver_and_torch(make_measured, tmp_path):
    for facts in ({}, {"driver": "590.1"}, {"torch": "2.13.0"}, L4):
        limits.cache_measured(tmp_path, make_measured(**facts))
    again = limits.cache_measured(tmp_path, make_measured({"copy": 1.0}))
    assert len(list(tmp_path.iterdir())) == 4
    assert again.name.startswith("nvidia-h200-")
    assert limits.read_measured(again).rates[0].per_s == 1.0


@cases("facts", "reason")
def test_whether_it_is_the_same_gpu(make_measured, facts, reason):
    found = limits.mismatch(make_measured(), facts.pop("name", "NVIDIA H200"), **facts)
    assert found is None if reason is None else reason in str(found)
