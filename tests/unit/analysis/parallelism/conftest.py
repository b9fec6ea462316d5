"""Accounts of launches typed in or recorded in `recorded_launches.jsonl`.

The recorded ones are real: kernel names (arguments cut), calls and geometries as PyTorch 2.11 on an H200 and
older releases on an A100 left them in traces, one per family and function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from opscope.analysis.parallelism import (
    DeviceFacts,
    LaunchFacts,
    OperatorCall,
    ParallelismAccount,
    account,
    parse_compile_arguments,
)
from opscope.analysis.totals import LaunchGeometry
from opscope.provenance.kernel_names import decode

H200 = DeviceFacts("NVIDIA H200", "9.0", 132)
Extent = tuple[int, int, int]
Tell = Callable[..., ParallelismAccount]

RECORDED = tuple(
    json.loads(line)
    for line in Path(__file__).with_name("recorded_launches.jsonl").read_text(encoding="utf-8").splitlines()
)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def facts_of(
    kernel: str,
    grid: Extent | None = None,
    block: Extent | None = None,
    operator: str | None = None,
    shapes: list[Any] | None = None,
    *,
    types: list[Any] | None = None,
    strides: list[Any] | None = None,
    concrete: list[str] | None = None,
    registers: int | None = None,
    shared_bytes: int | None = None,
    device: DeviceFacts | None = H200,
    **others: Any,
) -> LaunchFacts:
    """Facts of one launch; shapes, types, strides and scalars as the recorder writes them."""
    call = operator and OperatorCall.from_json(
        operator,
        shapes=_json(shapes),
        types=_json(types),
        strides=_json(strides),
        concrete=_json(concrete),
    )
    geometry = LaunchGeometry(grid, block, registers, shared_bytes, None, 1, 1_000)
    return LaunchFacts(decode(kernel), geometry, call or None, device, **others)


def facts_of_record(record: Mapping[str, Any], **changes: Any) -> LaunchFacts:
    """Facts of a line of the file, with some of them replaced."""
    record = {**record, **changes}
    device, grid, block = record["device"], record["grid"], record["block"]
    return facts_of(
        record["kernel"],
        tuple(grid) if grid else None,
        tuple(block) if block else None,
        record["operator"],
        record["shapes"],
        types=record["types"],
        strides=record["strides"],
        concrete=record["concrete"],
        registers=record["registers"],
        shared_bytes=record["shared_bytes"],
        device=DeviceFacts(**device) if device else None,
        compile_arguments=parse_compile_arguments(record["kernel_kwargs"]),
    )


def _told(facts: LaunchFacts) -> ParallelismAccount:
    found = account(facts)
    assert found is not None
    return found


@pytest.fixture
def tell() -> Tell:
    return lambda *args, **options: _told(facts_of(*args, **options))


@pytest.fixture(scope="session")
def facts_from() -> Callable[..., LaunchFacts]:
    return facts_of_record


class _Records(tuple[dict[str, Any], ...]):
    """The lines of the file; a failing property prints its arguments, and these are 120 kB."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} recorded launches>"


@pytest.fixture(scope="session")
def records() -> tuple[dict[str, Any], ...]:
    return _Records(RECORDED)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "record" in metafunc.fixturenames:
        metafunc.parametrize("record", RECORDED, ids=[_id(record) for record in RECORDED])


def _id(record: Mapping[str, Any]) -> str:
    return f"{record['family']}-{decode(record['kernel']).function or record['kernel']}".replace(" ", "-")
