"""`opscope devices`: GPUs and compute capabilities, from tables; neither a GPU nor torch is needed."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from opscope.cli.console import print_document, print_json
from opscope.hardware.architectures import architectures
from opscope.hardware.devices import devices as known_devices
from opscope.hardware.lookup import search_devices
from opscope.report.device_json import devices_json
from opscope.report.device_report import device_details_document, device_list_document

__all__ = ["devices"]


def devices(
    *name: Annotated[str, Parameter(name="NAME")],
    json: bool = False,
) -> int:
    """Show GPUs: architecture, compute capability, -arch flag, limits and peak rates.

    Without NAME, a table of all; with one, everything known of the devices it means, with sources.

    Args:
        name: A GPU (h200, rtx 4090, or as a driver reports it), an architecture (hopper), a compute
            capability (9.0) or a target of nvcc (sm_90).
        json: Print one JSON document and nothing else.
    """
    if name:
        found = search_devices(" ".join(name))
        shown, capabilities = found.devices, found.architectures
    else:
        shown, capabilities = known_devices(), architectures()
    if json:
        print_json(devices_json(shown, capabilities))
    elif name:
        print_document(device_details_document(shown, capabilities))
    else:
        print_document(device_list_document(shown, capabilities))
    return 0
