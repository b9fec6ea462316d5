"""The files flame graph viewers read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.program.stacks import StackProfile
from opscope.report.exports import collapsed_text, speedscope_document


def profile(stacks, names, **fields):
    values = {"name": "trace.json", **fields}
    return StackProfile(names=names, stacks=tuple(stacks), weights=tuple(stacks.values()), **values)


def test_a_speedscope_file():
    names = ["unused", "train.py(3): step", "aten::mm", "gemm<a, b>", ""]
    one = profile({(1, 2, 3): 40, (1, 2, 4): 2}, names)
    document = speedscope_document([one], name="title")
    assert document["shared"]["frames"] == [
        {"name": "train.py(3): step", "file": "train.py", "line": 3},
        {"name": "aten::mm"},
        {"name": "gemm<a, b>"},
        {"name": "[unnamed]"},
    ]
    assert document["profiles"][0]["samples"] == [[0, 1, 2], [0, 1, 3]]
    assert document["profiles"][0]["weights"] == [40, 2]


def test_several_traces_share_their_frames():
    names = ["a", "b"]
    profiles = [profile({(0,): 1}, names, name="rank 0"), profile({(0, 1): 2}, names, name="rank 1")]
    document = speedscope_document(profiles, name="")
    assert [one["name"] for one in document["profiles"]] == ["rank 0", "rank 1"]
    assert collapsed_text(profiles) == "rank 0;a 1\nrank 1;a;b 2\n"


def test_collapsed_stacks_that_read_alike_are_added_up():
    names = ["train.py(3): step", "void f<a; b>(int)\n", " "]
    text = collapsed_text([profile({(0, 1): 40, (0, 2): 2, (0,): 7}, names)])
    assert text == (
        "train.py(3): step;void f<a: b>(int) 40\ntrain.py(3): step;[unnamed] 2\ntrain.py(3): step 7\n"
    )
    assert collapsed_text([profile({(0,): 1, (1,): 2}, ["a;b", "a:b"])]) == "a:b 3\n"


names = st.lists(st.text(max_size=8), min_size=1, max_size=5)


@given(st.data(), names)
def test_no_weight_is_lost(data, names):
    frames = st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=4).map(tuple)
    one = profile(data.draw(st.dictionaries(frames, st.integers(1, 2**50))), names)
    lines = collapsed_text([one]).split("\n")
    assert lines.pop() == ""
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == one.total
    assert {line.rpartition(" ")[0].count(";") + 1 for line in lines} <= {len(stack) for stack in one.stacks}


@pytest.mark.parametrize("profiles", [[], [profile({}, [])]])
def test_nothing_is_an_empty_text(profiles):
    assert collapsed_text(profiles) == ""
