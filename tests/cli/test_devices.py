"""`opscope devices`: the table, one device with its sources, JSON, and names nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


def test_the_table_has_what_the_guide_asks_for(opscope: Run) -> None:
    outcome = opscope("devices")
    assert outcome.code == 0
    row = next(line for line in outcome.out.splitlines() if " B200 " in line)
    assert row.split()[:6] == ["Blackwell", "B200", "10.0", "sm_100", "12.8+", "148"]
    assert "7.67 TB/s" in row
    assert "dense" in outcome.out


def test_one_device_is_shown_with_every_source(opscope: Run) -> None:
    outcome = opscope("devices", "rtx", "4090")
    assert outcome.code == 0
    assert "Compute capability 8.9 (Ada Lovelace)" in outcome.out
    assert "-arch=sm_89, CUDA 11.8+" in outcome.out
    assert "330 TFLOP/s" in outcome.out
    assert "NVIDIA Ada GPU Architecture, whitepaper (2023)" in outcome.out


def test_derived_peaks_and_left_out_numbers_are_named(opscope: Run) -> None:
    out = " ".join(opscope("devices", "RTX 4070").out.split())
    assert "derived" in out
    assert "Derived: operations per SM and clock × SMs × boost clock" in out
    assert "Not known for certain memory bandwidth" in out


def test_a_target_shows_limits_and_its_devices(opscope: Run) -> None:
    outcome = opscope("devices", "sm_90")
    assert outcome.code == 0
    assert "GH200 144 GB" in outcome.out
    assert "2,048 threads (64 warps), 32 blocks, 65,536 registers" in outcome.out


def test_a_capability_without_a_device_of_the_table_is_still_known(opscope: Run) -> None:
    outcome = opscope("devices", "8.7")
    assert outcome.code == 0
    assert "Jetson AGX Orin" in outcome.out


def test_json_has_units_in_names_and_null_for_unknown(opscope: Run) -> None:
    document = opscope("devices", "h200", "--json").json
    (device,) = document["devices"]
    assert device["memory_bandwidth_bytes_per_s"] == 4.8e12
    assert device["l2_bytes"] is None
    assert "l2_bytes" not in device["sources"]
    assert device["sources"]["memory_bytes"]["title"].startswith("NVIDIA H200")
    peak = next(one for one in device["peaks"] if one["type"] == "bf16")
    assert (peak["flop_per_s"], peak["accumulates_in"], peak["evidence"]) == (989.5e12, "fp32", "published")
    assert [one["arch_flag"] for one in document["architectures"]] == ["-arch=sm_90"]


def test_json_of_all(opscope: Run) -> None:
    document = opscope("devices", "--json").json
    assert document["schema_version"] == 1
    assert len({one["name"] for one in document["devices"]}) == len(document["devices"]) > 50


def test_an_unknown_name_is_one_error_with_similar_names(opscope: Run) -> None:
    outcome = opscope("devices", "h210")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(
        "error: no GPU, architecture or compute capability is known as 'h210'. Similar:"
    )
    assert "H200 SXM" in outcome.err
