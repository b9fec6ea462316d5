"""Limits of a device: measured rates win one by one, the datasheet fills in, the unknown stays None."""

from case_tables import cases
from opscope.hardware.devices import DataType, devices
from opscope.hardware.limits import LimitEvidence, match_limits, measured_type


def test_each_measured_rate_wins_by_itself(make_measured):
    measured = make_measured(
        {"copy": 4.28e12, "read": 4.4e12, "l2_read": 7e12, "matrix_tf32": 4.1e14, "matrix_fp64": 5.5e13},
        {"launch": 2100.0, "operator_call": 4300.0, "kernel_interval": 1300.0},
    )
    limits, _ = match_limits("NVIDIA H200", sm_count=132, measured=measured)
    assert (limits.memory.per_s, limits.memory.evidence) == (4.28e12, LimitEvidence.MEASURED)
    assert limits.memory.how == "copy as tested; median of 20, 2026-11-20, torch 2.11.0+cu130"
    assert limits.l2.per_s == 7e12
    assert limits.write is None
    evidence = {data_type.value: str(limit.evidence) for data_type, limit in limits.peaks.items()}
    assert evidence == {
        "fp64": "datasheet", "fp64_tensor": "measured", "fp32": "datasheet", "tf32": "measured",
        "fp16": "datasheet", "bf16": "datasheet", "fp8": "datasheet", "int8": "datasheet",
    }  # fmt: skip
    assert (limits.launch_ns, limits.operator_call_ns, limits.smallest_kernel_ns) == (2100, 4300, 1300)
    assert limits.l2_bytes == 62_914_560


class TestUnknown:
    def test_one_that_was_measured(self, make_measured):
        measured = make_measured({"copy": 1e12, "matrix_fp64": 1e12}, device="NVIDIA Z900")
        limits, _ = match_limits(
            "NVIDIA Z900", compute_capability="9.0", sm_count=132, memory_bytes=10**11, measured=measured
        )
        assert (limits.name, limits.memory.per_s, limits.sm_count) == ("NVIDIA Z900", 1e12, 132)
        assert list(limits.peaks) == [DataType.FP64_TENSOR]

    def test_a_slice_is_not_held_against_the_whole(self, make_measured):
        name = "NVIDIA H200 MIG 1g.18gb"
        limits, reason = match_limits(name, compute_capability="9.0", sm_count=16, memory_bytes=18 * 10**9)
        assert limits is None
        assert reason == "no rate of H200 SXM MIG 1g.18gb is published or was measured"
        measured = make_measured({"copy": 5e11}, device=name, sm_count=16, l2_bytes=None)
        limits, _ = match_limits(name, compute_capability="9.0", sm_count=16, measured=measured)
        assert (limits.memory.per_s, dict(limits.peaks), limits.l2_bytes) == (5e11, {}, None)


@cases("name", "capability", "data_type")
def test_the_type_of_a_measured_product(name, capability, data_type):
    assert measured_type(name, capability) is (None if data_type is None else DataType(data_type))


def test_every_device_with_a_published_rate_has_limits():
    for one in devices():
        limits, reason = match_limits(
            one.names[0],
            compute_capability=one.compute_capability,
            sm_count=one.sm_count,
            memory_bytes=one.memory_bytes,
        )
        is_known = one.memory_bandwidth_bytes_per_s is not None or bool(one.peaks)
        assert (limits is not None) == is_known, (one.name, reason)
        if limits is not None:
            assert limits.peaks.keys() == {peak.data_type for peak in one.peaks}
