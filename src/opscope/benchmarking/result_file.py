"""Benchmark results as files: one result, or a sweep of several; the JSON is that of `opscope bench --json`.

A file is replaced in one step, so it is whole whenever it is read. Imports neither torch nor the engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from opscope.benchmarking.benchmark_sweep import BenchmarkSweep
from opscope.errors import InputError
from opscope.model.benchmark import BENCHMARK_SCHEMA_VERSION, BenchmarkResult
from opscope.model.files import UNREADABLE_JSON, finite, write_text

# A thousand rows of a thousand samples each take about 20 MB; larger files are traces.
_LARGEST_BYTES = 64 << 20
_HINT = "Results are written by opscope bench --save"


def result_document(result: BenchmarkResult | BenchmarkSweep) -> dict[str, Any]:
    """The result in JSON types; a float that is no number is None."""
    return finite(msgspec.to_builtins(result))  # type: ignore[no-any-return]


def save_benchmark(
    path: str | os.PathLike[str], result: BenchmarkResult | BenchmarkSweep, *, force: bool = False
) -> Path:
    if Path(path).exists() and not force:
        raise InputError(
            "the file exists", source=path, hint="Overwrite it with --force, or overwrite=True in Python"
        )
    text = json.dumps(result_document(result), indent=1, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def is_result_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a benchmark result by its keys; it may still be damaged."""
    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
            return False
        return _is_result(msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw]))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _is_result(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and {"schema_version", "suite"} <= document.keys()
        and ("rows" in document or "points" in document)
        and "traceEvents" not in document
    )


def load_benchmark(path: str | os.PathLike[str]) -> BenchmarkResult | BenchmarkSweep:
    document = _read(Path(path))
    version = document["schema_version"]
    if not isinstance(version, int) or version > BENCHMARK_SCHEMA_VERSION:
        raise InputError(
            f"the result has schema version {version}, this opscope knows {BENCHMARK_SCHEMA_VERSION}",
            source=path,
            hint="Update opscope",
        )
    try:
        if "points" in document:
            return msgspec.convert(document, BenchmarkSweep)
        return msgspec.convert(document, BenchmarkResult)
    except UNREADABLE_JSON as error:
        raise InputError(f"the benchmark result is damaged ({error})", source=path, hint=_HINT) from error


def load_results(path: str | os.PathLike[str]) -> tuple[BenchmarkResult, ...]:
    """The results in a file: the points of a sweep, or the only one."""
    loaded = load_benchmark(path)
    return loaded.points if isinstance(loaded, BenchmarkSweep) else (loaded,)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise InputError(reason, source=path, hint=_HINT) from error
    except UNREADABLE_JSON as error:
        raise InputError(f"not a benchmark result: no JSON ({error})", source=path, hint=_HINT) from error
    if not _is_result(document):
        raise InputError("not a benchmark result", source=path, hint=_HINT)
    return document  # type: ignore[no-any-return]
