"""Hand-made benchmark results: rows with every figure given, so that reports are tested without measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.model.benchmark import (
    BenchmarkOptions,
    BenchmarkResult,
    BenchmarkRow,
    CacheState,
    CallProfile,
    Ceiling,
    KernelUse,
    OutputCheck,
    Status,
)
from opscope.model.environment import Environment, GpuInfo
from opscope.model.measurement import Clock

COPY = Ceiling("copy", 4.28e12, "bytes", "copy_ of 256 MB")
GPU = GpuInfo("NVIDIA H200", "9.0", 132, 150_109_880_320)


@pytest.fixture
def profile() -> Callable[..., CallProfile]:
    """A profile of kernels by name, each launched once per call."""

    def make(*names: str, device_ns: float = 130_000, **geometry: Any) -> CallProfile:
        uses = tuple(
            KernelUse(name, name.partition("(")[0], "kernel", 1, device_ns, "aten::x", **geometry)
            for name in names
        )
        return CallProfile(3, len(names), device_ns * len(names), uses)

    return make


@pytest.fixture
def row() -> Callable[..., BenchmarkRow]:
    """A measured row; figures that are not given follow from its median."""

    def make(name: str, median_ns: float | None = 131_200, **fields: Any) -> BenchmarkRow:
        made: dict[str, Any] = {"status": Status.OK, "min_bytes": 537_000_000, **fields}
        profile = made.get("profile")
        if profile is not None:
            made |= {"kernels_launched": profile.kernels_launched, "device_ns": profile.device_ns}
        if median_ns is not None:
            made = {
                "samples_ns": (median_ns,) * 7,
                "interval_ns": (median_ns * 0.999, median_ns * 1.001),
                "bytes_per_s": made["min_bytes"] / median_ns * 1e9,
                **made,
            }
        return BenchmarkRow(name=name, median_ns=median_ns, **made)

    return make


@pytest.fixture
def result() -> Callable[..., BenchmarkResult]:
    """A result on an H200 whose first row is the reference."""

    def make(*rows: BenchmarkRow, **fields: Any) -> BenchmarkResult:
        given: dict[str, Any] = {
            "suite": "gelu",
            "shape": (8192, 8192),
            "dtype": "float32",
            "device": "cuda:0",
            "reference": rows[0].name if rows else "torch",
            "clock": Clock.CUDA_EVENT,
            "cache_state": CacheState.COLD,
            "options": BenchmarkOptions(),
            "environment": Environment(python="3.11", platform="Linux", opscope="0.1.0", gpu=(GPU,)),
            "created": "2026-01-01T00:00:00+00:00",
            "ceilings": (COPY,),
            **fields,
        }
        return BenchmarkResult(rows=rows, **given)

    return make


@pytest.fixture
def check() -> OutputCheck:
    return OutputCheck(1.2e-7, 3e-8, 1e-5, 64, 0, "torch in float64")
