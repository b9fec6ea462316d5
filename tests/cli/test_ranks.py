"""Ranks of a recorded job that are not as they should be: said, and the rest is analyzed."""

import gzip
import json

import pytest

_GROUP_KEYS = ("Process Group Name", "Process Group Description", "Process Group Ranks", "Group size", "Seq")


@pytest.fixture(scope="module")
def recorded(shared):
    """Four ranks of DistributedDataParallel, of which rank 1 does extra work."""
    files = sorted((shared / "traces/h200/ddp_straggler_w4").glob("rank*.json.gz"))
    return [json.loads(gzip.decompress(one.read_bytes())) for one in files]


def without_groups(rank, trace):
    def bare(event):
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            return event
        return {**event, "args": {key: one for key, one in arguments.items() if key not in _GROUP_KEYS}}

    return {**trace, "traceEvents": [bare(event) for event in trace["traceEvents"]]}


def minutes_apart(rank, trace):
    offset_us = rank * 137e6
    events = [
        {**event, "ts": round(event["ts"] + offset_us, 3)} if "ts" in event else event
        for event in trace["traceEvents"]
    ]
    return {**trace, "traceEvents": events}


def unchanged(rank, trace):
    return trace


def write(folder, recorded, change):
    for rank, trace in enumerate(recorded):
        text = json.dumps(change(rank, trace)).encode()
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, 1))
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("change", [unchanged, without_groups, minutes_apart])
def test_the_straggler_is_found_whatever_clocks_and_metadata(opscope, tmp_path, recorded, change):
    found = opscope("analyze", write(tmp_path, recorded, change), "--json").json
    assert found["straggler"]["rank"] == 1


@pytest.mark.exhaustive
def test_a_rank_that_is_cut_off_is_read_as_far_as_it_goes(opscope, tmp_path, recorded):
    write(tmp_path, recorded, unchanged)
    file = tmp_path / "rank2.json.gz"
    text = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(text[: len(text) * 6 // 10]))
    findings = opscope("analyze", tmp_path, "--json").fine().json["findings"]
    # What is lost was recorded: nobody is told to record it.
    codes = {one["code"] for one in findings}
    assert "trace.truncated" in codes and "trace.no_device_activity" not in codes
