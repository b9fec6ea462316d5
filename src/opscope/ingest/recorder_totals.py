"""Files of recorders that no Session is made of → totals by kernel and by what launched it.

Device times of rocprof's RPD, rocprofv3, Proton (Triton) and torch_npu (Ascend), as the files hold them.
Written by samples of rpd2tracing, rocprofiler-sdk 1, Proton 3 and torch_npu 2.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec
import numpy as np

from opscope.errors import InputError
from opscope.ingest.nesting import enclosing, nest
from opscope.ingest.replays import Demangle
from opscope.ingest.source import find_traces, local_text

_GPU = re.compile(r"GPU[0-9]+")
# What reading a file fails with that holds something else.
_ODD = (msgspec.DecodeError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError)
_Launch = tuple[str, str | None, int, int]  # kernel, what launched it, calls, nanoseconds


def read_totals(source: str, demangle: Demangle) -> dict[str, list[dict[str, Any]]]:
    """Rows of `name`, `calls` and `device_ns`, most time first: by kernel, and by operator or scope.

    The latter are none where the file tells none; the name is None of what it ties to none.
    """
    (trace,) = find_traces(source)
    with local_text(trace, Path(gettempdir())) as local:
        text = local.path.read_bytes()
    try:
        return _totals(msgspec.json.decode(text), demangle)
    except _ODD as error:
        what = f"cut off, or not as its recorder writes it ({type(error).__name__}: {error})"
        raise InputError(what, source=source, hint="Let the recorder write it again") from error


def _totals(document: Any, demangle: Demangle) -> dict[str, list[dict[str, Any]]]:
    read: Any = _of_rocprof
    if isinstance(document, list):
        read = _of_ascend if document[0].get("ph") else _of_proton if document[0] else _of_rpd
    totals: dict[str, dict[str | None, dict[str, Any]]] = {"kernels": {}, "operators": {}}
    for kernel, launcher, calls, ns in read(document):
        for known, name in zip(totals.values(), (demangle(kernel) or kernel, launcher), strict=True):
            one = known.setdefault(name, {"name": name, "calls": 0, "device_ns": 0})
            one["calls"] += calls
            one["device_ns"] += ns
    if set(totals["operators"]) == {None}:
        totals["operators"].clear()
    return {of: sorted(each.values(), key=lambda one: -one["device_ns"]) for of, each in totals.items()}


def _of_proton(document: list[dict[str, Any]]) -> Iterator[_Launch]:
    open_nodes: list[tuple[dict[str, Any], str | None]] = [(one, None) for one in document if "frame" in one]
    for node, scope in open_nodes:  # which grows
        name, metrics = node["frame"]["name"], node.get("metrics", {})
        if ns := metrics.get("time (ns)"):
            yield name, scope, int(metrics.get("count", 1)), int(ns)
        open_nodes += [(one, name) for one in node.get("children", ())]


def _of_rpd(document: list[dict[str, Any]]) -> Iterator[_Launch]:
    named = (one for one in document if one.get("name") == "process_name")
    devices = {one["pid"] for one in named if _GPU.fullmatch(one["args"]["name"])}
    for one in document:
        if one.get("ph") == "X" and one["pid"] in devices:
            yield one["name"], None, 1, _ns(one["dur"])


def _of_rocprof(document: dict[str, list[dict[str, Any]]]) -> Iterator[_Launch]:
    for process in document["rocprofiler-sdk-tool"]:
        names = {one["kernel_id"]: one["formatted_kernel_name"] for one in process["kernel_symbols"]}
        records = process["buffer_records"]
        for one in records["kernel_dispatch"]:
            ns = one["end_timestamp"] - one["start_timestamp"]
            yield names[one["dispatch_info"]["kernel_id"]], None, 1, ns
        for one in records["memory_copy"]:
            yield "memory copy", None, 1, one["end_timestamp"] - one["start_timestamp"]


def _of_ascend(document: list[dict[str, Any]]) -> Iterator[_Launch]:
    named = (one for one in document if one["name"] == "process_name")
    devices = {one["pid"] for one in named if one["args"]["name"] == "Ascend Hardware"}
    spans = [one for one in document if one["ph"] == "X"]
    operators = [one for one in spans if one.get("cat") == "cpu_op"]
    operators = [one for one in operators if not one["name"].startswith("ProfilerStep#")]
    # From where the host launched a task to where that begins.
    flows = [one for one in document if one.get("cat") == "async_npu"]
    ends = {one["id"]: (one["tid"], one["ts"]) for one in flows if one["ph"] == "f"}
    starts = [one for one in flows if one["ph"] == "s" and one["id"] in ends]
    begun = np.array([[one["tid"], _ns(one["ts"]), _ns(one["dur"])] for one in operators]).reshape(-1, 3)
    forest = nest(begun[:, 0], begun[:, 1], begun[:, 2], np.arange(len(begun)))
    launched = np.array([[one["tid"], _ns(one["ts"])] for one in starts]).reshape(-1, 2)
    places = zip(starts, enclosing(forest, launched[:, 0], launched[:, 1]).tolist(), strict=True)
    launchers = {ends[one["id"]]: operators[forest.order[at]]["name"] for one, at in places if at >= 0}
    for one in spans:
        if one["pid"] in devices:
            yield one["name"], launchers.get((one["tid"], one["ts"])), 1, _ns(one["dur"])


def _ns(us: str | float) -> int:
    return round(Decimal(str(us)) * 1000)
