"""A Session that holds names and nothing else, to ask for their provenance without a recording."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opscope.model.session import Session

__all__ = ["session_of_names"]


def session_of_names(
    operators: Sequence[tuple[str, str | None]],
    kernels: Iterable[str] = (),
    *,
    torch_version: str | None = None,
) -> Session:
    """A Session with one operator per (name, overload) and one name per kernel, as of a torch release.

    Its operators have a device time of zero; its device is CUDA.
    """
    session = Session()
    session.replace_rows(
        "traces", [{"trace_id": 0, "source": "names", "format": "names", "torch_version": torch_version}]
    )
    session.replace_rows(
        "operators",
        [
            {
                "operator_id": index,
                "trace_id": 0,
                "name": name,
                "overload": overload,
                "self_device_ns": 0,
                "total_device_ns": 0,
            }
            for index, (name, overload) in enumerate(operators)
        ],
    )
    session.replace_rows(
        "kernel_names",
        [{"name_id": index, "name": name, "kind": "kernel"} for index, name in enumerate(kernels)],
    )
    return session
