"""`opscope devices`: show GPUs: architecture, compute capability, -arch flag, limits and peak rates.

The tables need neither a GPU nor torch; measuring needs both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opscope import api
from opscope.benchmarking.limits import measure_device
from opscope.cli.console import Force, Json, Showing, check_outputs, note, say_wrote, status
from opscope.errors import InputError
from opscope.hardware.limits import (
    LIMITS_FOLDER,
    MeasuredLimits,
    cache_measured,
    read_folder,
    save_measured,
    spec_of,
)
from opscope.provenance.packaged import cache_folder
from opscope.report.machine import (
    device_details_document,
    device_list_document,
    devices_json,
    measured_document,
    measured_json,
)


def devices(
    *name: Annotated[str, Parameter(name="NAME")],
    measure: bool = False,
    save: Path | None = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Show GPUs: architecture, compute capability, -arch flag, limits and peak rates.

    Without NAME, list all GPUs; with one, show everything known about the devices it matches, with sources,
    and what was measured here. With --measure, measure this machine's GPU: copies, reads, writes, L2 cache,
    matrix products of each type, launches. `opscope analyze` uses the result from then on.

    Example: opscope devices h200

    Args:
        name: A GPU (h200, rtx 4090, or the driver's name), an architecture (hopper), a compute capability
            (9.0) or an nvcc target (sm_90); with --measure, cuda (the default), cuda:N or cpu.
        measure: Measure a device of this machine; takes about ten seconds.
        save: Also write the measurements to this JSON file. Only with --measure.
    """
    if measure:
        return _measure(" ".join(name) or "cuda", save, force=force, json=json)
    if save is not None:
        raise InputError("--save belongs to --measure", hint="Add --measure")
    found = api.devices(" ".join(name))
    shown, capabilities = found.devices, found.architectures
    measured: dict[str, MeasuredLimits] = {}  # the newest of each device
    if name or json:
        usable, ignored = read_folder(cache_folder() / LIMITS_FOLDER)
        for one in usable:
            spec = spec_of(one)
            measured[one.device if spec is None else spec.name] = one
        for reason in ignored:
            note(f"passed over: {reason}")
    Showing(json=json).show(
        lambda: devices_json(shown, capabilities, measured),
        lambda: (
            device_details_document(shown, capabilities, measured)
            if name
            else device_list_document(shown, capabilities)
        ),
    )
    return 0


def _measure(device: str, save: Path | None, *, force: bool, json: bool) -> int:
    check_outputs([save], force=force)
    with status(f"Measuring {device}"):
        measured = measure_device(device)
    written = [] if save is None else [save_measured(save, measured)]
    spec = None
    if measured.compute_capability is not None:  # a CPU's figures are not kept
        spec = spec_of(measured)
        try:
            written.append(cache_measured(cache_folder() / LIMITS_FOLDER, measured))
        except InputError as error:
            note(f"not kept for later commands: {error}")
    Showing(json=json).show(lambda: measured_json(measured, spec), lambda: measured_document(measured, spec))
    say_wrote(written, on_stderr=json)
    return 0
