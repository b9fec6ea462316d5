"""Launches whose explanations are known: `launches.jsonl`, one each.

Those with a family are real, one per family and function: kernel names (arguments cut), calls and geometries
as PyTorch 2.11 on an H200 and older releases on an A100 left them in traces. Those with a case are typed in.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from opscope.launches.facts import DeviceFacts, LaunchFacts, LaunchGeometry, parse_compile_arguments
from opscope.operators.arguments import parse_arguments
from opscope.provenance.kernel_names.decoder import decode

LAUNCHES = tuple(
    json.loads(line)
    for line in Path(__file__).with_name("launches.jsonl").read_text(encoding="utf-8").splitlines()
)
RECORDED = tuple(record for record in LAUNCHES if "family" in record)


def facts_of(record, **changes):
    """Facts of a line of the file, with some of them replaced."""
    record = {**record, **changes}
    arguments = {name: record.get(name) for name in ("shapes", "types", "strides", "concrete")}
    operator, device = record.get("operator"), record.get("device")
    extents = (tuple(record[name]) if record.get(name) else None for name in ("grid", "block"))
    return LaunchFacts(
        decode(record["kernel"]),
        LaunchGeometry(*extents, record.get("registers"), record.get("shared_bytes"), None, 1, 1_000),
        None if operator is None else parse_arguments(operator, **arguments),
        None if device is None else DeviceFacts(**device),
        parse_compile_arguments(record.get("kernel_kwargs")),
        record.get("torch_version"),
        record.get("size_bytes"),
    )


def title_of(record):
    """What a launch is called in tests and in the file of explanations."""
    return (
        record.get("case") or f"{record['family']}, {decode(record['kernel']).function or record['kernel']}"
    )


@pytest.fixture(scope="session")
def facts_from():
    return facts_of


class _Records(tuple[dict[str, Any], ...]):
    """The recorded launches; a failing property prints its arguments, and these are 120 kB."""

    __slots__ = ()

    def __repr__(self):
        return f"<{len(self)} recorded launches>"


@pytest.fixture(scope="session")
def records():
    return _Records(RECORDED)


@pytest.fixture(scope="session")
def launches():
    """All launches of the file, with their titles and whether they were recorded."""
    return tuple((title_of(record), facts_of(record), "family" in record) for record in LAUNCHES)


each_record = pytest.mark.parametrize("record", RECORDED, ids=title_of)
