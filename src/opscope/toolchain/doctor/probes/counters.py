"""Whether hardware counters can be read: by reading one with ncu, of the kernel doctor launches itself."""

from __future__ import annotations

import csv
import re

from opscope.toolchain.doctor.facts import CounterFacts, ProgramFacts
from opscope.toolchain.doctor.probes.child import child_program
from opscope.toolchain.doctor.probes.surroundings import Surroundings
from opscope.toolchain.programs import ProgramEnd

__all__ = ["probe_counters", "read_counters"]

_TIMEOUT_S = 90.0
_METRIC = "sm__cycles_elapsed.max"
# Which words of ncu mean what; as in toolchain.ncu.running.
_DENIED = "ERR_NVGPUCTRPERM"
_TAKEN = "driver resource was unavailable"
_ERROR = re.compile(r"^==ERROR== (.*)$", re.MULTILINE)


def probe_counters(surroundings: Surroundings, ncu: ProgramFacts) -> CounterFacts:
    """Read one counter with ncu; clocks stay as they are."""
    if ncu.path is None:
        return CounterFacts(failure="ncu is not installed")
    end = surroundings.run(
        ncu.path, "--metrics", _METRIC, "--clock-control", "none", "--launch-count", "1", "--page", "raw",
        "--csv", surroundings.python, child_program("doctor_driver"), timeout_s=_TIMEOUT_S,
    )  # fmt: skip
    return read_counters(end)


def read_counters(end: ProgramEnd) -> CounterFacts:
    """What a run of ncu showed."""
    said = f"{end.out}\n{end.err}"
    value = _value(end.out)
    if value is not None and not _ERROR.search(said):
        return CounterFacts(is_readable=True, value=value)
    errors = _ERROR.findall(said)
    failure = " ".join(errors[:2]) or end.failure or f"ncu printed no counter (exit code {end.exit_code})"
    return CounterFacts(
        is_readable=False, failure=failure, is_denied=_DENIED in said, is_taken=_TAKEN in said
    )


def _value(out: str) -> float | None:
    """The counter in ncu's raw page: a row of names, one of units, one per kernel."""
    rows = list(csv.reader(line for line in out.splitlines() if line.startswith('"')))
    header = next((row for row in rows if _METRIC in row), None)
    if header is None:
        return None
    column = header.index(_METRIC)
    for row in rows[rows.index(header) + 1 :]:
        text = row[column].replace(",", "") if len(row) > column else ""
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
    return None
