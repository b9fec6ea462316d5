"""Names of devices: those drivers report mean exactly one device or none, never the wrong one."""

from __future__ import annotations

import gzip
import json

import pytest

from opscope.data import example_trace
from opscope.errors import InputError
from opscope.hardware.architectures import DEVICE_PROPERTIES, Evidence
from opscope.hardware.devices import devices, find_device, match_device, search_devices

GIB = 1024**3
MIB = 1024**2


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("A100-SXM4-40GB", "A100 SXM 40 GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80 GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80 GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94 GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32 GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16 GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GH200 480GB", "GH200 96 GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
    ],
)
def test_names_drivers_report(reported: str, name: str) -> None:
    found = find_device(reported)
    assert found is not None
    assert found.name == name


def test_every_device_is_found_by_its_own_name_and_facts() -> None:
    for one in devices():
        for name in (one.name, *one.names[:1]):
            found = find_device(
                name,
                compute_capability=one.compute_capability,
                memory_bytes=one.memory_bytes,
                sm_count=one.sm_count,
            )
            assert found == one


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "NVIDIA A100X",
        "NVIDIA H100 64GB HBM3",
        "Quadro RTX 6000",
        "NVIDIA H20",
        "AMD Instinct MI300X",
        "",
    ],
)
def test_a_similar_name_is_another_device(reported: str) -> None:
    match = match_device(reported)
    assert match.spec is None
    assert match.reason is not None
    assert "not in the table" in match.reason


@pytest.mark.parametrize(
    ("reported", "memory_mib", "sm_count", "name"),
    [
        ("NVIDIA GeForce RTX 3080", 10_008, 68, "RTX 3080 10 GB"),
        ("NVIDIA GeForce RTX 3080", 12_044, 70, "RTX 3080 12 GB"),
        ("NVIDIA GeForce RTX 3060", 12_044, 28, "RTX 3060 12 GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 16_076, 34, "RTX 4060 Ti 16 GB"),
        ("NVIDIA H100", 81_080, 114, "H100 PCIe 80 GB"),
        ("NVIDIA H100", 81_080, 132, "H100 SXM 80 GB"),
        ("NVIDIA H100", 95_830, 132, "H100 NVL 94 GB"),
        ("NVIDIA H200", 143_167, 132, "H200 SXM"),
        ("NVIDIA A10", 22_515, 72, "A10"),
    ],
)
def test_variants_are_told_apart_by_what_is_reported(
    reported: str, memory_mib: int, sm_count: int, name: str
) -> None:
    found = find_device(reported, memory_bytes=memory_mib * MIB, sm_count=sm_count)
    assert found is not None
    assert found.name == name


def test_an_ambiguous_name_is_none_with_the_reason() -> None:
    match = match_device("NVIDIA GeForce RTX 4060 Ti")
    assert match.spec is None
    assert match.reason == "'NVIDIA GeForce RTX 4060 Ti' may be any of RTX 4060 Ti 8 GB, RTX 4060 Ti 16 GB"


def test_facts_that_contradict_the_table_win_over_the_name() -> None:
    match = match_device("NVIDIA A100-SXM4-80GB", compute_capability="8.0", sm_count=124)
    assert match.spec is not None
    assert match.spec.evidence is Evidence.DEVICE_PROPERTIES
    assert (match.spec.sm_count, match.spec.peaks) == (124, ())
    assert match.reason == "what was reported of 'NVIDIA A100-SXM4-80GB' fits none of A100 SXM 80 GB"


def test_an_unknown_device_is_what_was_reported_of_it() -> None:
    match = match_device("NVIDIA H20", compute_capability="9.0", memory_bytes=96 * GIB, sm_count=78)
    found = match.spec
    assert found is not None
    assert (found.name, found.sm_count, found.memory_bytes) == ("NVIDIA H20", 78, 96 * GIB)
    assert found.architecture is not None
    assert found.architecture.name == "Hopper"
    assert found.evidence is Evidence.DEVICE_PROPERTIES
    assert found.source_of("sm_count") == DEVICE_PROPERTIES
    assert found.memory_bandwidth_bytes_per_s is None


def test_an_unknown_capability_has_no_architecture() -> None:
    found = find_device("NVIDIA Next", compute_capability="19.0", sm_count=304)
    assert found is not None
    assert (found.compute_capability, found.architecture) == ("19.0", None)


def test_the_version_of_an_amd_gpu_is_no_compute_capability() -> None:
    found = find_device("AMD Radeon Graphics", compute_capability="9.0", sm_count=104)
    assert found is not None
    assert (found.sm_count, found.compute_capability, found.architecture) == (104, None, None)


def test_the_recorded_h200_of_the_packaged_trace_is_known() -> None:
    with gzip.open(example_trace(), "rt", encoding="utf-8") as file:
        (recorded,) = json.load(file)["deviceProperties"]
    found = find_device(
        recorded["name"],
        compute_capability=f"{recorded['computeMajor']}.{recorded['computeMinor']}",
        memory_bytes=recorded["totalGlobalMem"],
        sm_count=recorded["numSms"],
    )
    assert found is not None and found.architecture is not None
    assert found.name == "H200 SXM"
    limits = found.architecture
    assert limits.warp_threads == recorded["warpSize"]
    assert limits.max_threads_per_block == recorded["maxThreadsPerBlock"]
    assert limits.max_threads_per_sm == recorded["maxThreadsPerMultiprocessor"]
    assert limits.registers_per_sm == recorded["regsPerMultiprocessor"]
    assert limits.max_registers_per_block == recorded["regsPerBlock"]
    assert limits.static_shared_bytes_per_block == recorded["sharedMemPerBlock"]
    assert limits.max_shared_bytes_per_block == recorded["sharedMemPerBlockOptin"]
    assert limits.shared_bytes_per_sm == recorded["sharedMemPerMultiprocessor"]


def test_a_mig_slice_has_its_own_size_and_no_peaks() -> None:
    found = find_device(
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        compute_capability="8.0",
        memory_bytes=4864 * MIB,
        sm_count=14,
    )
    assert found is not None
    assert (found.name, found.partition) == ("A100 SXM 40 GB MIG 1g.5gb", "1g.5gb")
    assert (found.sm_count, found.memory_bytes) == (14, 4864 * MIB)
    assert found.boost_clock_hz == 1.41e9
    assert found.peaks == ()
    assert found.memory_bandwidth_bytes_per_s is None
    assert found.source_of("sm_count") == DEVICE_PROPERTIES


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("h200", ["H200 SXM"]),
        ("rtx 4090", ["RTX 4090"]),
        ("RTX4090", ["RTX 4090"]),
        ("4070 ti", ["RTX 4070 Ti", "RTX 4070 Ti SUPER"]),
        ("h100", ["H100 SXM 80 GB", "H100 PCIe 80 GB", "H100 NVL 94 GB"]),
        ("a100 80gb", ["A100 SXM 80 GB", "A100 PCIe 80 GB"]),
        ("sm_103", ["B300"]),
        ("10.0", ["B100", "B200", "GB200"]),
        ("-arch=sm_80", ["A100 SXM 40 GB", "A100 SXM 80 GB", "A100 PCIe 40 GB", "A100 PCIe 80 GB", "A30"]),
        ("volta", ["V100 SXM2 16 GB", "V100 SXM2 32 GB", "V100 PCIe 16 GB", "V100 PCIe 32 GB", "Titan V"]),
        ("8.7", []),
    ],
)
def test_what_people_type(words: str, names: list[str]) -> None:
    assert [one.name for one in search_devices(words).devices] == names


def test_a_search_comes_with_the_capabilities_of_what_it_found() -> None:
    found = search_devices("b200")
    assert [one.compute_capability for one in found.architectures] == ["10.0"]
    assert [one.compute_capability for one in search_devices("volta").architectures] == ["7.0", "7.2"]


@pytest.mark.parametrize(
    ("words", "similar"), [("h210", "H200 SXM"), ("sm_95", "sm_90"), ("hoper", "Hopper")]
)
def test_unknown_words_are_an_error_that_names_similar_ones(words: str, similar: str) -> None:
    with pytest.raises(InputError, match=f"'{words}'") as caught:
        search_devices(words)
    assert similar in (caught.value.hint or "")


@pytest.mark.parametrize("words", ["", "nvidia", "qqqq"])
def test_words_like_no_name_are_an_error_that_says_where_names_are(words: str) -> None:
    with pytest.raises(InputError, match="opscope devices"):
        search_devices(words)
