"""The table of devices agrees with itself: peaks, bandwidths and sizes follow from counts and clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from math import log2
from typing import Any

import pytest

from opscope import hardware
from opscope.hardware.architectures import Evidence, read_facts
from opscope.hardware.devices import DataType, DeviceSpec, devices

ALL = devices()
GIB = 1024**3
# Published figures are rounded, and some stated at a clock a little below the boost clock.
ROUNDING = 0.03

# States its clock for fp32 alone.
NO_TENSOR_CLOCK = ("H100 NVL 94 GB",)


def each(chosen: Sequence[DeviceSpec]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("device", chosen, ids=[one.name for one in chosen])


def knowing(*numbers: str) -> list[DeviceSpec]:
    return [one for one in ALL if all(getattr(one, number) is not None for number in numbers)]


each_device = each(ALL)
TIMED = knowing("sm_count", "boost_clock_hz")
WITH_PIN_RATE = knowing("memory_bus_bits", "memory_pin_bits_per_s")
WITH_HBM = [
    one
    for one in knowing("memory_bus_bits", "memory_bandwidth_bytes_per_s", "memory_kind")
    if str(one.memory_kind).startswith("HBM")
]
RATED = [one for one in read_facts("devices.toml")["device"] if "rates" in one]


def test_most_devices_have_the_numbers_that_can_be_checked() -> None:
    assert min(len(TIMED), len(RATED)) >= 50
    assert len(WITH_PIN_RATE) >= 40
    assert len(WITH_HBM) >= 10


def named(name: str) -> DeviceSpec:
    return next(one for one in ALL if one.name == name)


def flop_per_s(name: str, data_type: str) -> float | None:
    peak = named(name).peak(data_type)
    return None if peak is None else peak.flop_per_s


@each_device
def test_every_device_has_what_the_table_of_gpus_needs(device: DeviceSpec) -> None:
    assert device.architecture is not None
    assert device.architecture.compute_capability == device.compute_capability
    assert device.memory_bytes
    assert device.names
    assert device.evidence is Evidence.PUBLISHED


@each_device
def test_every_number_has_a_source_with_its_year(device: DeviceSpec) -> None:
    sources = [device.source, *(one.source for one in device.peaks)]
    sources += [source for _, source in device.number_sources]
    assert all(one.title and 2017 <= int(one.date) <= 2026 for one in sources)
    assert all(getattr(device, number) is not None for number, _ in device.number_sources)
    assert device.source_of("memory_bytes") is not None


@each([one for one in TIMED if one.peak(DataType.FP32) is not None])
def test_fp32_is_two_flop_per_core_and_clock(device: DeviceSpec) -> None:
    peak = device.peak(DataType.FP32)
    assert peak and device.architecture and device.sm_count and device.boost_clock_hz
    cores = device.architecture.fp32_cores_per_sm * device.sm_count
    assert peak.flop_per_s == pytest.approx(2 * cores * device.boost_clock_hz, rel=ROUNDING)


@each([one for one in TIMED if one.name not in NO_TENSOR_CLOCK])
def test_tensor_peaks_are_a_power_of_two_per_multiprocessor_and_clock(device: DeviceSpec) -> None:
    clock_hz = device.tensor_clock_hz or device.boost_clock_hz
    assert clock_hz and device.sm_count
    for peak in device.peaks:
        if peak.data_type.uses_tensor_cores and peak.data_type is not DataType.FP64_TENSOR:
            per_clock = peak.flop_per_s / device.sm_count / clock_hz
            assert per_clock == pytest.approx(2 ** round(log2(per_clock)), rel=ROUNDING), peak


@pytest.mark.parametrize("facts", RATED, ids=lambda facts: facts["name"])
def test_published_peaks_agree_with_the_rates_they_would_be_derived_from(facts: dict[str, Any]) -> None:
    rates = read_facts("devices.toml")["rates"][facts["rates"]]
    device = named(facts["name"])
    assert {one.data_type.value for one in device.peaks} == rates.keys() - {"source"}
    for name, published in facts.get("peaks", {}).items():
        clock_hz = facts["boost_clock_hz"]
        if name not in ("fp64", "fp64_tensor", "fp32"):
            clock_hz = facts.get("tensor_clock_hz", clock_hz)
        assert published == pytest.approx(rates[name] * facts["sm_count"] * clock_hz, rel=ROUNDING), name


@each(WITH_PIN_RATE)
def test_bandwidth_is_bus_width_times_data_rate(device: DeviceSpec) -> None:
    bits, rate = device.memory_bus_bits, device.memory_pin_bits_per_s
    assert bits and rate
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(bits * rate / 8, rel=0.005)


@each(WITH_HBM)
def test_hbm_data_rates_lie_within_their_generation(device: DeviceSpec) -> None:
    limits = {"HBM2": (1.4e9, 2.5e9), "HBM2e": (2.4e9, 3.6e9), "HBM3": (4e9, 6.5e9), "HBM3e": (6e9, 9.6e9)}
    assert device.memory_bus_bits and device.memory_bandwidth_bytes_per_s and device.memory_kind
    least, most = limits[device.memory_kind]
    assert least <= device.memory_bandwidth_bytes_per_s * 8 / device.memory_bus_bits <= most


@each_device
def test_types_of_half_the_width_are_never_slower(device: DeviceSpec) -> None:
    for wide, narrow in (
        ("fp64", "fp32"),
        ("fp32", "tf32"),
        ("tf32", "bf16"),
        ("fp16", "fp8"),
        ("fp8", "fp4"),
    ):
        slow, fast = device.peak(wide), device.peak(narrow)
        if slow is not None and fast is not None:
            assert slow.flop_per_s <= fast.flop_per_s


@each_device
def test_fp16_and_bf16_are_equally_fast_and_sums_in_fp16_twice_as_fast(device: DeviceSpec) -> None:
    fp16, bf16 = device.peak("fp16"), device.peak("bf16")
    if fp16 is not None and bf16 is not None:
        assert fp16.flop_per_s == bf16.flop_per_s
    half = device.peak("fp16_fp16_accumulate")
    if half is not None and fp16 is not None:
        assert half.flop_per_s == pytest.approx(2 * fp16.flop_per_s, rel=0.01)


@each_device
def test_types_exist_only_where_the_hardware_has_them(device: DeviceSpec) -> None:
    assert device.compute_capability is not None
    capability = tuple(map(int, device.compute_capability.split(".")))
    first = {
        "int8": (7, 5),
        "tf32": (8, 0),
        "bf16": (8, 0),
        "fp64_tensor": (8, 0),
        "fp8": (8, 9),
        "fp4": (10, 0),
    }
    assert all(first.get(one.data_type.value, (7, 0)) <= capability for one in device.peaks)


def test_figures_everyone_knows_are_dense() -> None:
    # The datasheets print twice as much for these, with structured sparsity.
    assert flop_per_s("H100 SXM 80 GB", "fp16") == pytest.approx(989.4e12)
    assert flop_per_s("A100 SXM 80 GB", "bf16") == pytest.approx(312e12)
    assert flop_per_s("B200", "fp4") == pytest.approx(9e15)
    assert flop_per_s("L40S", "fp8") == pytest.approx(733e12)
    assert flop_per_s("RTX 5090", "fp4") == pytest.approx(1676e12)


def test_geforce_halves_the_rate_of_sums_in_fp32() -> None:
    assert flop_per_s("RTX 4090", "fp16_fp16_accumulate") == pytest.approx(330.3e12)
    assert flop_per_s("RTX 4090", "fp16") == pytest.approx(165.2e12)
    assert flop_per_s("L40S", "fp16_fp16_accumulate") is None


def test_a_peak_published_only_per_multiprocessor_is_derived_and_says_so() -> None:
    peak = named("RTX 4070").peak("bf16")
    assert peak is not None
    assert peak.evidence is Evidence.DERIVED
    assert peak.flop_per_s == 512 * 46 * 2.475e9
    assert "whitepaper" in peak.source.title


def test_what_is_not_certain_is_left_out() -> None:
    assert named("RTX 4070").memory_bandwidth_bytes_per_s is None
    assert named("RTX 4070").source_of("memory_bandwidth_bytes_per_s") is None
    assert named("B300").sm_count is None
    assert named("Titan V").peaks == ()


def test_a_number_may_have_a_source_of_its_own() -> None:
    b200 = named("B200")
    assert b200.source_of("l2_bytes") != b200.source_of("tdp_watts") == b200.source


def test_blackwell_of_the_data_center_is_10_0_and_needs_cuda_12_8() -> None:
    found = named("B200").architecture
    assert found is not None
    assert (found.arch_flag, found.least_cuda_version) == ("-arch=sm_100", "12.8")


@pytest.mark.parametrize("file", ["devices.toml", "architectures.toml"])
def test_every_declared_source_is_used(file: str) -> None:
    text = resources.files(hardware).joinpath(file).read_text(encoding="utf-8")
    assert [
        key for key in read_facts(file)["source"] if text.count(f'"{key}"') == 0 and key != "ptx_isa"
    ] == []


def test_names_are_unique_and_devices_sorted_by_capability() -> None:
    assert max(Counter(one.name for one in ALL).values()) == 1
    capabilities = [key for key, _ in groupby(one.compute_capability for one in ALL)]
    order = [tuple(map(int, str(one).split("."))) for one in capabilities]
    assert order == sorted(order)


def test_devices_that_share_a_driver_name_differ_in_memory_or_multiprocessors() -> None:
    drivers = [name for one in ALL for name in one.names if name.startswith(("NVIDIA", "Tesla"))]
    for name in {name for name, count in Counter(drivers).items() if count > 1}:
        sharing = [one for one in ALL if name in one.names]
        assert len({(one.memory_bytes, one.sm_count) for one in sharing}) == len(sharing), name
