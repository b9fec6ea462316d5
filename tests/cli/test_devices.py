"""`opscope devices`: the table, one device with its sources, JSON, and names nobody knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opscope.cli import devices as devices_module
from opscope.errors import MeasurementError
from opscope.hardware.measured import cache_measured, read_measured
from opscope.model.measured_limits import MeasuredLimits

Run = Callable[..., Any]
Make = Callable[..., MeasuredLimits]

RATES = {"copy": 4.28e12, "l2_read": 7.2e12, "matrix_bf16": 8.1e14, "matrix_int8": 1.4e15}
TIMES = {"launch": 2100.0, "kernel_interval": 1300.0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own: where measurements are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "opscope" / "limits"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, make_measured: Make) -> Callable[..., MeasuredLimits]:
    """Makes --measure give what is said, without a device."""

    def give(*arguments: Any, **facts: Any) -> MeasuredLimits:
        measured = make_measured(*arguments, **facts)
        monkeypatch.setattr(devices_module, "measure_device", lambda device: measured)
        return measured

    return give


def test_the_table_has_what_the_guide_asks_for(opscope: Run) -> None:
    outcome = opscope("devices")
    assert outcome.code == 0
    row = next(line for line in outcome.out.splitlines() if " B200 " in line)
    assert row.split()[:6] == ["Blackwell", "B200", "10.0", "sm_100", "12.8+", "148"]
    assert "7.67 TB/s" in row
    assert "dense" in outcome.out


@pytest.mark.parametrize(
    ("name", "architecture", "capability", "target", "toolkits"),
    [
        ("V100 SXM2 16 GB", "Volta", "7.0", "sm_70", "9.0–12.9"),
        ("Titan V", "Volta", "7.0", "sm_70", "9.0–12.9"),
        ("A100 SXM 80 GB", "Ampere", "8.0", "sm_80", "11.0+"),
        ("A30", "Ampere", "8.0", "sm_80", "11.0+"),
        ("RTX 3090", "Ampere", "8.6", "sm_86", "11.1+"),  # often told as 11.0
        ("H100 SXM 80 GB", "Hopper", "9.0", "sm_90", "11.8+"),
        ("B200", "Blackwell", "10.0", "sm_100", "12.8+"),  # often told as 9.0, sm_90
    ],
)
def test_the_facts_that_a_build_needs(  # noqa: PLR0917 - a row of the table
    opscope: Run, name: str, architecture: str, capability: str, target: str, toolkits: str
) -> None:
    row = next(line for line in opscope("devices").out.splitlines() if f" {name} " in line)
    assert " ".join(row.split()).startswith(f"{architecture} {name} {capability} {target} {toolkits}")


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
    assert device["memory_bus_bits"] is None
    assert "memory_bus_bits" not in device["sources"]
    assert device["measured"] == []
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


class TestMeasure:
    def test_rates_stand_beside_published_ones(self, opscope: Run, measuring: Make) -> None:
        measuring(RATES, TIMES, missing={"matrix_fp8": "needs compute capability 8.9"})
        outcome = opscope("devices", "--measure")
        assert (outcome.code, outcome.err) == (0, "")
        out = " ".join(outcome.out.split())
        assert "Copy, read + written 4.28 TB/s ± 1.0 % 4.80 TB/s 89.2 %" in out
        assert "Read from L2 7.20 TB/s ± 1.0 % – –" in out
        assert "Product of bf16, sums in fp32 810 TFLOP/s ± 1.0 % 990 TFLOP/s 81.9 %" in out
        assert "1.40 POP/s" in outcome.out
        assert "1.30 µs" in outcome.out
        assert "No product of fp8, sums in fp32" in outcome.out
        assert "torch 2.11.0+cu130, driver 580.159.04" in outcome.out

    def test_it_is_kept_and_shown_with_the_device_from_then_on(
        self, opscope: Run, measuring: Make, cache: Path
    ) -> None:
        measured = measuring(RATES, TIMES)
        outcome = opscope("devices", "--measure", "cuda:0")
        (path,) = cache.iterdir()
        assert outcome.out.endswith(f"Wrote {path}\n")
        assert read_measured(path) == measured
        assert "Measured: H200 SXM" in opscope("devices", "h200").out
        assert "Measured:" not in opscope("devices", "h100").out
        by_name = {one["name"]: one for one in opscope("devices", "h200", "--json").json["devices"]}
        (record,) = by_name["H200 SXM"]["measured"]
        assert record["rates"][0]["published_fraction"] == pytest.approx(4.28 / 4.8)
        assert record["rates"][1]["published_per_s"] is None

    def test_json_is_the_measurement_and_nothing_else(
        self, opscope: Run, measuring: Make, tmp_path: Path
    ) -> None:
        measuring(RATES, TIMES)
        path = tmp_path / "limits.json"
        outcome = opscope("devices", "--measure", "--save", path, "--json")
        assert outcome.json["device"] == "NVIDIA H200"
        assert [one["published_fraction"] is None for one in outcome.json["rates"]] == [
            False,
            True,
            False,
            False,
        ]
        assert f"Wrote {path}" in outcome.err
        assert json.loads(path.read_text())["rates"][0]["per_s"] == 4.28e12

    def test_a_printed_document_can_be_read_as_a_file(
        self, opscope: Run, measuring: Make, tmp_path: Path
    ) -> None:
        measured = measuring(RATES, TIMES)
        path = tmp_path / "printed.json"
        path.write_text(opscope("devices", "--measure", "--json").out)
        assert read_measured(path) == measured

    def test_a_file_is_not_overwritten_unasked(self, opscope: Run, measuring: Make, tmp_path: Path) -> None:
        measuring()
        path = tmp_path / "limits.json"
        path.write_text("mine")
        outcome = opscope("devices", "--measure", "--save", path)
        assert outcome.code == 1
        assert "the file exists" in outcome.err
        assert path.read_text() == "mine"
        assert opscope("devices", "--measure", "--save", path, "--force").code == 0
        assert path.read_text() != "mine"

    def test_a_slice_stands_with_its_device_and_beside_nothing_published(
        self, opscope: Run, cache: Path, make_measured: Make
    ) -> None:
        cache_measured(cache, make_measured({"copy": 5e11}, device="NVIDIA H200 MIG 1g.18gb", sm_count=16))
        out = opscope("devices", "h200").out
        assert "Measured: NVIDIA H200 MIG 1g.18gb" in out
        assert "10.4 %" not in out  # of the whole device's bandwidth

    def test_a_cpu_is_not_kept(self, opscope: Run, measuring: Make, cache: Path) -> None:
        measuring(device="x86_64", compute_capability=None, sm_count=None, memory_bytes=None)
        assert opscope("devices", "--measure", "cpu").code == 0
        assert not cache.exists()

    def test_a_cache_that_cannot_be_written_is_a_note(
        self, opscope: Run, measuring: Make, cache: Path
    ) -> None:
        measuring()
        cache.parent.mkdir(parents=True)
        cache.write_text("a file, no folder")
        outcome = opscope("devices", "--measure")
        assert outcome.code == 0
        assert outcome.err.startswith("note: not kept for later commands: ")

    def test_a_damaged_measurement_is_a_note(self, opscope: Run, cache: Path) -> None:
        cache.mkdir(parents=True)
        (cache / "damaged.json").write_text("{")
        outcome = opscope("devices", "h200")
        assert outcome.code == 0
        assert "note: passed over: " in outcome.err
        assert "damaged.json" in outcome.err

    def test_without_a_device_it_is_one_error(self, opscope: Run) -> None:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is one")
        outcome = opscope("devices", "--measure")
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.count("\n") == 1
        assert "finds no CUDA device" in outcome.err

    def test_a_measurement_that_fails_is_one_error(
        self, opscope: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(device: str) -> MeasuredLimits:
            raise MeasurementError(f"{device} was lost")

        monkeypatch.setattr(devices_module, "measure_device", fail)
        outcome = opscope("devices", "--measure")
        assert (outcome.code, outcome.out, outcome.err) == (1, "", "error: cuda was lost\n")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("h200", "--measure"), "'h200' is not a device"),
            (("--save", "x.json"), "belongs to --measure"),
        ],
    )
    def test_options_that_do_not_go_together(
        self, opscope: Run, arguments: tuple[str, ...], message: str
    ) -> None:
        outcome = opscope("devices", *arguments)
        assert outcome.code == 1
        assert message in outcome.err
