"""Words of --arch, and the options they become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.errors import InputError
from opscope.hardware.architectures import Target, parse_target
from opscope.toolchain.nvcc.command import choose_targets, code_options, ptx_target, runs_on

# What nvcc 13.0 knows.
KNOWN = tuple(
    Target(int(number[:-1]), int(number[-1]), suffix)
    for number, suffixes in {
        "75": "", "80": "", "86": "", "87": "", "88": "", "89": "", "90": "a", "100": "af", "103": "af",
        "110": "af", "120": "af", "121": "af",
    }.items()
    for suffix in ("", *suffixes)
)  # fmt: skip


def choose(*words: str, native: tuple[str, ...] = ("9.0",)) -> list[str]:
    return [one.name for one in choose_targets(words, KNOWN, native=lambda: native)]


@pytest.mark.parametrize("word", ["sm_90a", "90a", "9.0a", "SM_90A"])
def test_one_target_has_many_spellings(word):
    assert parse_target(word) == Target(9, 0, "a")


@pytest.mark.parametrize("word", ["compute_90", "sm_9", "sm_90x", "h200", "", "sm_", "native"])
def test_other_words_are_no_target(word):
    assert parse_target(word) is None


def test_words_become_distinct_targets_in_order():
    assert choose("sm_90", "sm_80", "90", "sm_90a") == ["sm_80", "sm_90", "sm_90a"]
    assert choose("native", native=("9.0", "9.0", "8.0")) == ["sm_80", "sm_90"]


def test_all_is_every_general_target_and_all_major_what_nvcc_has_for_it():
    assert choose("all") == [one.name for one in KNOWN if one.is_general]
    assert choose("all-major") == ["sm_75", "sm_80", "sm_90", "sm_100", "sm_110", "sm_120"]


def test_an_unknown_target_lists_the_known_and_says_what_explains_it():
    with pytest.raises(InputError, match=r"does not build for sm_70: because\. It knows sm_75, .*sm_121f"):
        choose_targets(["sm_70"], KNOWN, native=list, explain=lambda target: "because")
    with pytest.raises(InputError, match=r"'sm_9' is no target of nvcc\. It knows sm_75"):
        choose("sm_9")
    with pytest.raises(InputError, match="--arch sm_90 --ptx"):
        choose("compute_90")


def test_ptx_is_of_the_first_target_of_the_newest_generation():
    assert ptx_target([Target(9, 0), Target(12, 0), Target(12, 1)]).ptx_name == "compute_120"
    assert ptx_target([Target(8, 0), Target(9, 0, "a")]).ptx_name == "compute_80"
    with pytest.raises(InputError, match="compute_90a is for no later GPU"):
        ptx_target([Target(9, 0, "a")])


def test_options_of_one_target_with_ptx_are_nvccs_short_form():
    assert code_options([Target(9, 0)], Target(9, 0)) == ["-arch=sm_90"]
    assert code_options([Target(9, 0)], None) == ["-gencode=arch=compute_90,code=sm_90"]
    assert code_options([Target(8, 0), Target(9, 0, "a")], Target(8, 0)) == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_80,code=compute_80",
    ]


def test_machine_code_runs_within_its_generation_and_ptx_beyond():
    assert runs_on([Target(8, 0)], None, "8.6")
    assert not runs_on([Target(8, 6)], None, "8.0")
    assert not runs_on([Target(8, 0)], None, "9.0")
    assert runs_on([Target(8, 0)], Target(8, 0), "9.0")
    assert runs_on([Target(9, 0, "a")], None, "9.0")
    assert not runs_on([Target(10, 0, "a")], None, "10.3")
    assert runs_on([Target(10, 0, "f")], None, "10.3")
    assert not runs_on([Target(10, 0, "f")], None, "11.0")


@given(st.lists(st.sampled_from(KNOWN), min_size=1))
def test_chosen_targets_are_those_named_once_each_and_sorted(targets):
    chosen = choose(*(one.name for one in targets))
    assert chosen == [one.name for one in sorted(set(targets))]
    for one in targets:
        assert parse_target(one.name) == one == parse_target(one.number)
        assert runs_on(targets, None, one.compute_capability)


@given(
    st.lists(st.sampled_from([one for one in KNOWN if one.is_general]), min_size=1), st.sampled_from(KNOWN)
)
def test_more_code_never_runs_on_fewer_gpus(targets, gpu):
    capability = gpu.compute_capability
    without = runs_on(targets[:1], None, capability)
    assert runs_on(targets, None, capability) >= without
    assert runs_on(targets, ptx_target(targets), capability) >= without
