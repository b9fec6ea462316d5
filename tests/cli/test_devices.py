"""`opscope devices`: the table, one device with its sources, JSON, and names nobody knows."""

import json

import pytest

from opscope.cli import devices as devices_module
from opscope.errors import MeasurementError
from opscope.hardware.limits import cache_measured, read_measured

RATES = {"copy": 4.28e12, "l2_read": 7.2e12, "matrix_bf16": 8.1e14, "matrix_int8": 1.4e15}
TIMES = {"launch": 2100.0, "kernel_interval": 1300.0}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own: where measurements are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "opscope" / "limits"


@pytest.fixture
def measuring(monkeypatch, make_measured):
    """Makes --measure give what is said, without a device."""

    def give(*arguments, **facts):
        measured = make_measured(*arguments, **facts)
        monkeypatch.setattr(devices_module, "measure_device", lambda device: measured)
        return measured

    return give


def test_measured_rates_stand_beside_published_ones(opscope, measuring):
    measuring(RATES, TIMES, missing={"matrix_fp8": "needs compute capability 8.9"})
    outcome = opscope("devices", "--measure").fine(
        "Copy, read + written 4.28 TB/s ± 1.0 % 4.80 TB/s 89.2 %", "Read from L2 7.20 TB/s ± 1.0 % – –",
        "Product of bf16, sums in fp32 810 TFLOP/s ± 1.0 % 990 TFLOP/s 81.9 %", "1.40 POP/s", "1.30 µs",
        "No product of fp8, sums in fp32", "torch 2.11.0+cu130, driver 580.159.04",
    )  # fmt: skip
    assert outcome.err == ""


def test_a_measurement_is_kept_and_shown_with_the_device_from_then_on(opscope, measuring, cache):
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


def test_json_is_the_measurement_and_can_be_read_as_a_file(opscope, measuring, tmp_path):
    measured = measuring(RATES, TIMES)
    path, printed = tmp_path / "limits.json", tmp_path / "printed.json"
    path.write_text("mine")
    opscope("devices", "--measure", "--save", path, "--json").fails("the file exists")
    assert path.read_text() == "mine"
    outcome = opscope("devices", "--measure", "--save", path, "--json", "--force").fine()
    assert outcome.json["device"] == "NVIDIA H200"
    unpublished = [one["published_fraction"] is None for one in outcome.json["rates"]]
    assert unpublished == [False, True, False, False]
    assert f"Wrote {path}" in outcome.err
    assert json.loads(path.read_text())["rates"][0]["per_s"] == 4.28e12
    printed.write_text(outcome.out)
    assert read_measured(printed) == measured


def test_a_slice_stands_with_its_device_and_beside_nothing_published(opscope, cache, make_measured):
    cache_measured(cache, make_measured({"copy": 5e11}, device="NVIDIA H200 MIG 1g.18gb", sm_count=16))
    out = opscope("devices", "h200").fine("Measured: NVIDIA H200 MIG 1g.18gb").out
    assert "10.4 %" not in out  # of the whole device's bandwidth


def test_a_cpu_is_not_kept(opscope, measuring, cache):
    measuring(device="x86_64", compute_capability=None, sm_count=None, memory_bytes=None)
    opscope("devices", "--measure", "cpu").fine()
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_or_read_is_a_note(opscope, measuring, cache):
    measuring()
    cache.parent.mkdir(parents=True)
    cache.write_text("a file, no folder")
    kept = opscope("devices", "--measure").fine()
    assert kept.err.startswith("note: not kept for later commands: ")
    cache.unlink()
    cache.mkdir()
    (cache / "damaged.json").write_text("{")
    err = opscope("devices", "h200").fine().err
    assert "note: passed over: " in err and "damaged.json" in err


def test_without_a_device_and_where_measuring_fails_it_is_one_error(opscope, monkeypatch):
    def fail(device):
        raise MeasurementError(f"{device} was lost")

    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        opscope("devices", "--measure").fails("finds no CUDA device", lines=1)
    monkeypatch.setattr(devices_module, "measure_device", fail)
    opscope("devices", "--measure").fails("error: cuda was lost\n", lines=1)
