"""Limits of a recording: given file, cached measurement, datasheet; none where GPUs are mixed or unknown."""

import pytest

from fakes import TraceBuilder
from opscope.analysis.launch_quality import limits_of_session
from opscope.errors import InputError
from opscope.hardware.limits import cache_measured, save_measured


@pytest.fixture
def load(load_once):
    return load_once


L4 = {"id": 1, "name": "NVIDIA L4", "computeMajor": 8, "computeMinor": 9, "numSms": 58}
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


def recorded(*devices, used=(0,)):
    builder = TraceBuilder(deviceProperties=list(devices))
    for device in used:
        builder.operator("aten::mm", 10 * device, 5).launch(10 * device + 1).kernel(
            "gemm", 10 * device + 3, 5, device=device
        )
    return builder


def test_a_cached_measurement_of_the_same_gpu_comes_before_it(load, make_measured, tmp_path):
    cache = tmp_path / "cache"
    cache_measured(cache, make_measured({"copy": 4.28e12}))
    cache_measured(cache, make_measured({"copy": 9e12}, device="NVIDIA H200 NVL"))
    cache_measured(cache, make_measured({"copy": 8e12}, sm_count=16))
    limits, reason = limits_of_session(load(recorded(H200)), cache)
    assert (limits.memory.per_s, str(limits.memory.evidence), reason) == (4.28e12, "measured", None)


def test_a_given_file_comes_before_both(load, make_measured, tmp_path):
    cache_measured(tmp_path / "cache", make_measured({"copy": 4.28e12}, created="2027-01-01T00:00:00+00:00"))
    given = save_measured(tmp_path / "given.json", make_measured({"copy": 4.0e12}))
    limits, _ = limits_of_session(load(recorded(H200)), tmp_path / "cache", given)
    assert limits.memory.per_s == 4.0e12


def test_a_given_file_of_another_gpu_is_an_error(load, make_measured, tmp_path):
    given = save_measured(tmp_path / "given.json", make_measured(device="NVIDIA L4"))
    with pytest.raises(InputError, match="it is of 'NVIDIA L4', not of 'NVIDIA H200'") as caught:
        limits_of_session(load(recorded(H200)), None, given)
    assert "given.json" in str(caught.value)


def test_a_damaged_given_file_is_an_error_also_without_gpu_work(load, tmp_path):
    given = tmp_path / "given.json"
    given.write_text("{")
    for trace in (recorded(H200), TraceBuilder().operator("aten::mm", 0, 5)):
        with pytest.raises(InputError, match="holds no measured limits"):
            limits_of_session(load(trace), None, given)


def test_a_damaged_file_in_the_folder_is_passed_over_and_named(load, tmp_path):
    (tmp_path / "damaged.json").write_text("{")
    limits, reason = limits_of_session(load(recorded(H200)), tmp_path)
    assert limits is not None
    assert str(reason).startswith("measurements that could not be used: ")
    assert "damaged.json" in str(reason)


class TestWhichGpu:
    def test_several_alike_and_one_that_did_nothing(self, load):
        devices = [{**H200, "id": index} for index in range(2)]
        devices[0]["totalGlobalMem"], devices[1]["totalGlobalMem"] = 150_109_880_320, 150_100_000_000
        limits, _ = limits_of_session(load(recorded(*devices, used=(0, 1))))
        assert limits.name == "H200 SXM"
        limits, _ = limits_of_session(load(recorded(H200, L4)))
        assert limits.name == "H200 SXM"

    def test_different_ones_or_none_have_no_limits(self, load):
        limits, reason = limits_of_session(load(recorded(H200, L4, used=(0, 1))))
        assert limits is None
        assert reason == (
            "work of different GPUs was recorded: NVIDIA H200 (132 multiprocessors), "
            "NVIDIA L4 (58 multiprocessors)"
        )
        session = load(TraceBuilder().operator("aten::mm", 0, 5))
        assert limits_of_session(session) == (None, "no work of a GPU was recorded")

    def test_one_without_a_name(self, load, make_measured, tmp_path):
        session = load(recorded())
        assert limits_of_session(session) == (None, "the recording does not name its GPU")
        limits, reason = limits_of_session(
            session, None, save_measured(tmp_path / "given.json", make_measured())
        )
        assert limits.name == "H200 SXM"
        assert reason == "the recording does not name its GPU; 'NVIDIA H200' was given"

    def test_an_unknown_one(self, load, make_measured, tmp_path):
        session = load(recorded({**H200, "name": "NVIDIA Z900"}))
        assert limits_of_session(session) == (None, "'NVIDIA Z900' is not in the table of devices")
        cache_measured(tmp_path / "cache", make_measured(device="NVIDIA Z900"))
        limits, reason = limits_of_session(session, tmp_path / "cache")
        assert (limits.name, reason) == ("NVIDIA Z900", None)
