"""`opscope doctor` on a device: a kernel is launched, recorded and counted."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

pytest.importorskip("torch")

from opscope.errors import DependencyError
from opscope.toolchain.ncu_command import find_ncu

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

TIMEOUT_S = 300
TRIED = ("gpu.reachable", "torch.gpu", "gpu.calculation", "profiler.records", "profiler.settings")


@cache
def diagnosis(*variables):
    """Exit code and document of doctor in an environment with some variables set."""
    run = subprocess.run(
        [sys.executable, "-m", "opscope", "doctor", "--json"],
        env={**os.environ, **dict(variables)},
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    return run.returncode, json.loads(run.stdout)


def checks(document):
    return {one["code"]: one for one in document["checks"]}


def test_what_is_tried_works():
    code, document = diagnosis()
    found = checks(document)
    assert {name: found[name]["verdict"] for name in TRIED} == dict.fromkeys(TRIED, "ok"), found
    assert [one for one in document["checks"] if one["is_required"] and one["verdict"] != "ok"] == []
    assert (code, document["can_profile"]) == (0, True)


def test_the_device_is_described():
    import torch

    _, document = diagnosis()
    facts = document["facts"]
    properties = torch.cuda.get_device_properties(0)
    device = facts["devices"][0]["device"]
    assert device["name"] == properties.name
    assert device["compute_capability"] == f"{properties.major}.{properties.minor}"
    assert device["sm_count"] == properties.multi_processor_count
    assert device["memory_bytes"] >= properties.total_memory
    assert facts["torch"]["version"] == torch.__version__
    assert facts["torch"]["cuda"] == torch.version.cuda
    assert facts["torch"]["architectures"] == torch.cuda.get_arch_list()
    assert facts["driver"]["cuda_version"] is not None
    assert facts["driver"]["devices"][0]["name"] == properties.name


def test_the_state_is_told_where_a_tool_tells_it():
    _, document = diagnosis()
    gpu = document["facts"]["devices"][0]
    assert gpu["device"]["uuid"].startswith("GPU-")
    assert gpu["memory_used_bytes"] is not None
    assert gpu["utilization_fraction"] is not None
    assert gpu["processes"] is not None
    assert document["facts"]["driver"]["version"] is not None


def test_every_kernel_is_recorded():
    _, document = diagnosis()
    capture = document["facts"]["torch"]["capture"]
    assert capture["kernels_launched"] == capture["kernels_recorded"] > 0
    assert {"CPU", "CUDA"} <= set(capture["activities"])


def test_counters_are_read_where_ncu_is():
    _, document = diagnosis()
    counters = document["facts"]["counters"]
    try:
        find_ncu()
    except DependencyError:
        assert (counters["is_readable"], checks(document)["counters.access"]["verdict"]) == (None, "warning")
        return
    assert counters["is_readable"] is True, counters
    assert checks(document)["counters.access"]["verdict"] == "ok"


def test_hidden_devices_leave_the_cpu():
    code, document = diagnosis(("CUDA_VISIBLE_DEVICES", ""))
    found = checks(document)
    assert found["gpu.reachable"]["verdict"] == "warning"
    assert found["profiler.records"]["verdict"] == "ok"
    assert code == 0


def test_a_setting_that_distorts_is_found():
    code, document = diagnosis(("CUDA_LAUNCH_BLOCKING", "1"))
    assert checks(document)["profiler.settings"]["remedy"] == "unset CUDA_LAUNCH_BLOCKING"
    assert code == 0
