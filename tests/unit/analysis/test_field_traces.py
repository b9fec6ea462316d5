"""Traces of serving engines and of others' machines: what of their time is known."""

from pathlib import Path

import pytest

import opscope
from opscope.analysis.summary import Summary
from opscope.provenance.kernel_names.decoder import decode

pytestmark = pytest.mark.exhaustive(few=False)

NAMES = (
    "b200_vllm_eager", "h100_timesformer", "mi300_resnet_act_checkpoint", "vllm_decode_capture",
    "vllm_decode_execution",
)  # fmt: skip


@pytest.fixture(scope="module")
def read():
    """Session and Summary of a trace of the field, read once; an execution with its capture."""
    folder = Path(__file__).parents[4] / "shared/traces/field"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    known = {}

    def once(name):
        if name not in known:
            captures = [folder / "vllm_decode_capture.json.gz"] if "execution" in name else []
            session = opscope.load(folder / f"{name}.json.gz", captures=captures, threads=1)
            known[name] = session, Summary(session).complete()
        return known[name]

    yield once
    for session, _ in known.values():
        session.close()


@pytest.mark.parametrize("name", NAMES)
def test_kernels_have_a_family_and_categories_are_the_device_time(read, name):
    session, summary = read(name)
    kernels = session.query(
        "SELECT n.name, sum(duration_ns) FROM device_activities a JOIN kernel_names n USING (name_id) "
        "WHERE a.kind = 'kernel' GROUP BY ALL"
    )
    known = sum(ns for kernel, ns in kernels if decode(kernel).family is not None)
    assert known / sum(ns for _, ns in kernels) > 0.99
    assert sum(one.device_ns for one in summary.categories) == summary.device_time_ns
    assert not [check for check in session.check() if check.violations]
    remainder = sum(one.device_ns for one in summary.categories if one.without_operator)
    assert remainder == session.scalar(
        "SELECT coalesce(sum(duration_ns), 0)::BIGINT FROM device_activities WHERE operator_id IS NULL"
    )
