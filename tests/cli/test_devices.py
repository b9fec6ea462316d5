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
        opscope("devices", "--measure", "--save", path).fails("the file exists")
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
        outcome = opscope("devices", "--measure").fine()
        assert outcome.err.startswith("note: not kept for later commands: ")

    def test_a_damaged_measurement_is_a_note(self, opscope: Run, cache: Path) -> None:
        cache.mkdir(parents=True)
        (cache / "damaged.json").write_text("{")
        outcome = opscope("devices", "h200").fine()
        assert "note: passed over: " in outcome.err
        assert "damaged.json" in outcome.err

    def test_without_a_device_it_is_one_error(self, opscope: Run) -> None:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is one")
        opscope("devices", "--measure").fails("finds no CUDA device", lines=1)

    def test_a_measurement_that_fails_is_one_error(
        self, opscope: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(device: str) -> MeasuredLimits:
            raise MeasurementError(f"{device} was lost")

        monkeypatch.setattr(devices_module, "measure_device", fail)
        outcome = opscope("devices", "--measure")
        assert (outcome.code, outcome.out, outcome.err) == (1, "", "error: cuda was lost\n")
