"""The table of devices agrees with itself: peaks, bandwidths and sizes follow from counts and clocks."""

from itertools import pairwise
from math import log2

import pytest

from case_tables import cases
from opscope.data import packaged_toml
from opscope.errors import InputError
from opscope.hardware.architectures import DEVICE_PROPERTIES, SpecEvidence
from opscope.hardware.devices import DataType, cuda_capability, devices, match_device, search_devices

ALL = devices()
# Published figures are rounded, and some stated at a clock a little below the boost clock.
ROUNDING = 0.03

# States its clock for fp32 alone.
NO_TENSOR_CLOCK = ("H100 NVL 94 GB",)


def find_device(name, **facts):
    found = match_device(name, **facts).spec
    assert found is not None
    return found


def each(chosen):
    return pytest.mark.parametrize("device", chosen, ids=lambda device: device.name)


def knowing(*numbers):
    return [one for one in ALL if all(getattr(one, number) is not None for number in numbers)]


each_device = each(ALL)
TIMED = knowing("sm_count", "boost_clock_hz")
WITH_PIN_RATE = knowing("memory_bus_bits", "memory_pin_bits_per_s")
WITH_HBM = [
    one
    for one in knowing("memory_bus_bits", "memory_bandwidth_bytes_per_s", "memory_kind")
    if str(one.memory_kind).startswith("HBM")
]
RATED = [one for one in packaged_toml("opscope.hardware", "devices.toml")["device"] if "rates" in one]


def named(name):
    return next(one for one in ALL if one.name == name)


@each_device
def test_every_device_has_what_the_table_needs_and_sources_of_their_year(device):
    if device.gfx_target is None:
        assert device.architecture.compute_capability == device.compute_capability
    else:
        assert (device.architecture, device.compute_capability) == (None, None)
    assert device.memory_bytes
    assert device.names
    assert device.evidence is SpecEvidence.PUBLISHED
    sources = [device.source, *(one.source for one in device.peaks)]
    sources += [source for _, source in device.number_sources]
    assert all(one.title and 2017 <= int(one.date) <= 2026 for one in sources)
    assert all(getattr(device, number) is not None for number, _ in device.number_sources)
    assert device.source_of("memory_bytes") is not None


@each([one for one in TIMED if one.peak(DataType.FP32) is not None])
def test_fp32_is_two_flop_per_core_and_clock(device):
    peak = device.peak(DataType.FP32)
    assert peak and device.sm_count and device.boost_clock_hz
    # AMD's compute units have 64, and may issue one instruction for two of them together.
    cores = device.architecture.fp32_cores_per_sm if device.architecture else 64
    per_core = peak.flop_per_s / (cores * device.sm_count * device.boost_clock_hz)
    allowed = (2,) if device.architecture else (2, 4)
    assert any(per_core == pytest.approx(flop, rel=ROUNDING) for flop in allowed)


@each([one for one in TIMED if one.name not in NO_TENSOR_CLOCK])
def test_tensor_peaks_are_a_power_of_two_per_multiprocessor_and_clock(device):
    clock_hz = device.tensor_clock_hz or device.boost_clock_hz
    assert clock_hz and device.sm_count
    for peak in device.peaks:
        if peak.data_type.uses_tensor_cores and peak.data_type is not DataType.FP64_TENSOR:
            per_clock = peak.flop_per_s / device.sm_count / clock_hz
            assert per_clock == pytest.approx(2 ** round(log2(per_clock)), rel=ROUNDING), peak


@pytest.mark.parametrize("facts", RATED, ids=lambda facts: facts["name"])
def test_published_peaks_agree_with_the_rates_they_would_be_derived_from(facts):
    rates = packaged_toml("opscope.hardware", "devices.toml")["rates"][facts["rates"]]
    device = named(facts["name"])
    assert {one.data_type.value for one in device.peaks} == rates.keys() - {"source"}
    for name, published in facts.get("peaks", {}).items():
        clock_hz = facts.get("boost_clock_hz")
        if name not in ("fp64", "fp64_tensor", "fp32"):
            clock_hz = facts.get("tensor_clock_hz", clock_hz)
        assert published == pytest.approx(rates[name] * facts["sm_count"] * clock_hz, rel=ROUNDING), name


@each(WITH_PIN_RATE)
def test_bandwidth_is_bus_width_times_data_rate(device):
    bits, rate = device.memory_bus_bits, device.memory_pin_bits_per_s
    assert bits and rate
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(bits * rate / 8, rel=0.005)


@each(WITH_HBM)
def test_hbm_data_rates_lie_within_their_generation(device):
    limits = {"HBM2": (1.4e9, 2.5e9), "HBM2e": (2.4e9, 3.6e9), "HBM3": (4e9, 6.5e9), "HBM3e": (5.8e9, 9.6e9)}
    assert device.memory_bus_bits and device.memory_bandwidth_bytes_per_s and device.memory_kind
    least, most = limits[device.memory_kind]
    assert least <= device.memory_bandwidth_bytes_per_s * 8 / device.memory_bus_bits <= most


@each_device
def test_types_are_as_fast_as_their_width_allows(device):
    for wide, narrow in (*pairwise(("fp64", "fp32", "tf32", "bf16")), *pairwise(("fp16", "fp8", "fp4"))):
        slow, fast = device.peak(wide), device.peak(narrow)
        if slow is not None and fast is not None:
            assert slow.flop_per_s <= fast.flop_per_s
    fp16, bf16 = device.peak("fp16"), device.peak("bf16")
    if fp16 is not None and bf16 is not None:
        assert fp16.flop_per_s == bf16.flop_per_s
    half = device.peak("fp16_fp16_accumulate")
    if half is not None and fp16 is not None:
        assert half.flop_per_s == pytest.approx(2 * fp16.flop_per_s, rel=0.01)


@each([one for one in ALL if one.gfx_target is None])
def test_types_exist_only_where_the_hardware_has_them(device):
    capability = tuple(map(int, device.compute_capability.split(".")))
    first = {
        "int8": (7, 5),
        **dict.fromkeys(("tf32", "bf16", "fp64_tensor"), (8, 0)),
        "fp8": (8, 9),
        "fp4": (10, 0),
    }
    assert all(first.get(one.data_type.value, (7, 0)) <= capability for one in device.peaks)


def test_gpus_without_a_name_are_known_by_size_as_far_as_they_are_alike():
    """ROCm's recorder leaves names empty."""
    found = find_device("", compute_capability="9.4", memory_bytes=206_141_652_992, sm_count=304)
    assert found.name == "MI300X"
    assert found.peak("fp8").flop_per_s == pytest.approx(2614.9e12, rel=0.001)
    # ROCm calls a GPU so that its table of names lacks.
    name, memory_bytes = "AMD Radeon Graphics", 68_702_699_520
    found = find_device(name, compute_capability="9.0", memory_bytes=memory_bytes, sm_count=104)
    assert found.name == "MI210 or MI250 die"
    assert found.peak("fp16").flop_per_s == pytest.approx(181e12, rel=0.001)
    larger = find_device(name, compute_capability="9.0", memory_bytes=memory_bytes, sm_count=110)
    assert larger.name == "MI250X die"
    other = match_device(name, compute_capability="11.0", memory_bytes=memory_bytes, sm_count=104)
    assert other.spec is None or not other.spec.peaks
    found = find_device("AMD Radeon Graphics", compute_capability="9.0", sm_count=104)
    assert (found.sm_count, found.compute_capability, found.architecture) == (104, None, None)


MIB = 1024**2


@cases("reported", "memory_mib", "sm_count", "name")
def test_a_device_is_found_by_what_is_reported(reported, memory_mib, sm_count, name):
    memory_bytes = None if memory_mib is None else memory_mib * MIB
    assert find_device(reported, memory_bytes=memory_bytes, sm_count=sm_count).name == name


def test_every_device_is_found_by_its_own_name_and_facts():
    for one in devices():
        for name in (one.name, *one.names[:1]):
            found = find_device(
                name,
                compute_capability=one.compute_capability,
                memory_bytes=one.memory_bytes,
                sm_count=one.sm_count,
            )
            assert found == one


@cases("reported")
def test_a_similar_name_is_another_device(reported):
    match = match_device(reported)
    assert match.spec is None
    assert "not in the table" in match.reason


def test_an_ambiguous_name_is_none_and_contradicting_facts_win():
    match = match_device("NVIDIA GeForce RTX 4060 Ti")
    assert match.spec is None
    assert match.reason == "'NVIDIA GeForce RTX 4060 Ti' may be any of RTX 4060 Ti 8 GB, RTX 4060 Ti 16 GB"
    match = match_device("NVIDIA A100-SXM4-80GB", compute_capability="8.0", sm_count=124)
    assert match.spec.evidence is SpecEvidence.DEVICE_PROPERTIES
    assert (match.spec.sm_count, match.spec.peaks) == (124, ())
    assert match.reason == "what was reported of 'NVIDIA A100-SXM4-80GB' fits none of A100 SXM 80 GB"


def test_a_mig_slice_has_its_own_size_and_no_peaks():
    found = find_device(
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb", compute_capability="8.0", memory_bytes=4864 * MIB, sm_count=14
    )
    assert (found.name, found.partition) == ("A100 SXM 40 GB MIG 1g.5gb", "1g.5gb")
    assert (found.sm_count, found.memory_bytes) == (14, 4864 * MIB)
    assert found.boost_clock_hz == 1.41e9
    assert found.peaks == ()
    assert found.memory_bandwidth_bytes_per_s is None
    assert found.source_of("sm_count") == DEVICE_PROPERTIES


@cases("words", "names")
def test_what_people_type(words, names):
    assert [one.name for one in search_devices(words).devices] == names


@cases("words", "similar")
def test_unknown_words_are_an_error_that_names_similar_ones(words, similar):
    with pytest.raises(InputError, match=f"'{words}'") as caught:
        search_devices(words)
    assert similar in (caught.value.hint or "")


@pytest.mark.parametrize("words", ["", "nvidia", "qqqq"])
def test_words_like_no_name_are_an_error_that_says_where_names_are(words):
    with pytest.raises(InputError, match="opscope devices"):
        search_devices(words)


@cases("name", "known")
def test_what_another_vendor_reports_is_no_compute_capability(name, known):
    assert cuda_capability(name, "9.0") == known
