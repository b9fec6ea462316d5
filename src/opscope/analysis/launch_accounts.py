"""How the launches of a Session parallelize: accounts of `parallelism` with each launch's own numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opscope.analysis.common_device import common_device
from opscope.analysis.parallelism import (
    LaunchFacts,
    OperatorCall,
    ParallelismAccount,
    account,
    parse_compile_arguments,
)
from opscope.analysis.queries import sql
from opscope.analysis.totals import KernelTotal, LaunchGeometry, OperatorTotal
from opscope.model.session import Session
from opscope.provenance.kernel_names import decode

__all__ = ["LaunchAccount", "launch_accounts"]

_GEOMETRIES = 2  # configurations of one kernel, the longest first


@dataclass(frozen=True)
class LaunchAccount:
    """The account of one launch configuration; `shapes` are the arguments of its call, as JSON."""

    kernel: str
    geometry: LaunchGeometry
    account: ParallelismAccount
    shapes: str | None


def launch_accounts(
    session: Session,
    operators: Iterable[OperatorTotal],
    kernels: Iterable[KernelTotal] = (),
    *,
    torch_version: str | None = None,
) -> dict[tuple[str | None, str], tuple[LaunchAccount, ...]]:
    """Accounts by (operator name, kernel name); the operator is None for `kernels` of whichever operator."""
    wanted = [
        (owner, kernel, geometry)
        for owner, of in [*((one.name, one.kernels) for one in operators), (None, tuple(kernels))]
        for kernel in of
        for geometry in (kernel.geometries or (_bare(kernel),))[:_GEOMETRIES]
    ]
    ids = sorted({one.example_operator_id for _, _, one in wanted if one.example_operator_id is not None})
    calls = {row["operator_id"]: row for row in session.records(sql("example_calls"), [ids])}
    device = common_device(session)
    found: dict[tuple[str | None, str], list[LaunchAccount]] = {}
    for owner, kernel, geometry in wanted:
        row = calls.get(geometry.example_operator_id)
        told = account(
            LaunchFacts(
                kernel=decode(kernel.name),
                geometry=geometry,
                call=None if row is None else _call(row),
                device=device,
                compile_arguments=parse_compile_arguments(row["kernel_kwargs"] if row else None),
                torch_version=torch_version,
                size_bytes=None if kernel.size_bytes is None else kernel.size_bytes // kernel.calls,
            )
        )
        if told is not None:
            shapes = None if row is None else row["shapes"]
            found.setdefault((owner, kernel.name), []).append(
                LaunchAccount(kernel.name, geometry, told, shapes)
            )
    return {key: tuple(accounts) for key, accounts in found.items()}


def _bare(kernel: KernelTotal) -> LaunchGeometry:
    return LaunchGeometry(None, None, None, None, None, kernel.calls, kernel.total_ns)


def _call(row: dict[str, str | None]) -> OperatorCall:
    return OperatorCall.from_json(
        row["name"] or "",
        shapes=row["shapes"],
        types=row["types"],
        strides=row["strides"],
        concrete=row["concrete"],
    )
