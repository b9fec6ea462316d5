"""Devices, clocks and diagnostics of an export."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from opscope.api import load
from opscope.model.session import Session
from opscope.testing import ExportBuilder

GPU = {
    "id": 5, "name": "NVIDIA H200", "totalMemory": 150_000, "smCount": 132, "threadsPerWarp": 32,
    "maxWarpsPerSm": 64, "maxThreadsPerBlock": 1024, "maxRegistersPerBlock": 65536,
    "maxRegistersPerSm": 65536, "maxShmemPerBlock": 49152, "maxShmemPerBlockOptin": 232448,
    "maxShmemPerSm": 233472, "computeMajor": 9, "computeMinor": 0,
}  # fmt: skip


def write(path: Path, **tables: list[dict[str, Any]]) -> Path:
    """A kernel on device 1, and further tables."""
    ExportBuilder().launch(1).kernel("k", 2, 3, deviceId=1).write(path, without=["META_DATA_EXPORT"])
    with closing(sqlite3.connect(path)) as connection:
        for name, rows in tables.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(rows[0])})")
            for row in rows:
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({marks})", list(row.values()))
        connection.commit()
    return path


def devices(session: Session) -> list[dict[str, Any]]:
    return session.records(
        """SELECT device, name, compute_major, compute_minor, sm_count, memory_bytes, warp_size,
            max_threads_per_sm, shared_memory_per_block_optin_bytes, activity_count
        FROM devices ORDER BY device"""
    )


def test_a_device_is_the_process_own_ordinal(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.sqlite",
        TARGET_INFO_GPU=[GPU, {**GPU, "id": 6, "name": "NVIDIA T4"}],
        TARGET_INFO_CUDA_DEVICE=[
            {"gpuId": 5, "cudaId": 1, "pid": 10},
            {"gpuId": 6, "cudaId": 1, "pid": 11},
        ],
    )
    with load(path) as session:
        assert devices(session) == [
            {
                "device": 1, "name": "NVIDIA H200", "compute_major": 9, "compute_minor": 0, "sm_count": 132,
                "memory_bytes": 150_000, "warp_size": 32, "max_threads_per_sm": 2048,
                "shared_memory_per_block_optin_bytes": 232448, "activity_count": 1,
            }
        ]  # fmt: skip


def test_an_older_table_of_devices_and_none(tmp_path: Path) -> None:
    old = {"deviceId": 1, "name": "Tesla V100", "computeCapabilityMajor": 7, "computeCapabilityMinor": 0}
    with load(write(tmp_path / "old.sqlite", TARGET_INFO_CUDA_GPU=[old])) as session:
        (device,) = devices(session)
        assert (device["name"], device["compute_major"], device["sm_count"]) == ("Tesla V100", 7, None)
    with load(write(tmp_path / "none.sqlite")) as session:
        (device,) = devices(session)
        assert (device["name"], device["activity_count"]) == (None, 1)


def test_times_count_from_the_start_unless_they_were_shifted(tmp_path: Path) -> None:
    start = [{"utcEpochNs": 1_000_000}]
    shift = [{"name": "EXPORT_PARAM_TIME_SHIFT", "value": "250"}]
    normal = [*shift, {"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}]
    cases = [
        ({"TARGET_INFO_SESSION_START_TIME": start}, 1_000_000),
        ({"TARGET_INFO_SESSION_START_TIME": start, "META_DATA_EXPORT": shift}, 999_750),
        ({"TARGET_INFO_SESSION_START_TIME": start, "META_DATA_EXPORT": normal}, -250),
        ({}, None),
    ]
    for index, (tables, expected) in enumerate(cases):
        with load(write(tmp_path / f"{index}.sqlite", **tables)) as session:
            assert session.scalar("SELECT base_time_ns FROM traces") == expected


def test_the_drivers_version_and_what_nsys_warned_of(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.sqlite",
        TARGET_INFO_SYSTEM_ENV=[{"name": "CudaDriverVersion", "value": "12080"}],
        DIAGNOSTIC_EVENT=[
            {"severity": 1, "text": "started"},
            {"severity": 2, "text": "CUDA events\twere dropped."},
            {"severity": 3, "text": "Out of buffers."},
        ],
    )
    with load(path) as session:
        assert session.query("SELECT cuda_driver_version, driver_version FROM traces") == [(12080, "12.8")]
        (warned,) = [one for one in session.findings() if one.code == "nsys.diagnostics"]
        assert warned.message.endswith("CUDA events were dropped. Out of buffers.")
