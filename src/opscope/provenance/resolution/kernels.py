"""Kernel name → unit, template, functor: the chain below a kernel launch."""

from __future__ import annotations

from dataclasses import replace

from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.provenance.binaries.vendor import vendor_of_file
from opscope.provenance.categories import kernel_category
from opscope.provenance.kernel_names import DecodedKernel, decode
from opscope.provenance.resolution.evidence import Evidence, IndexedSource
from opscope.provenance.resolution.facts import KernelProvenance
from opscope.provenance.sources import Definition, named_arguments

__all__ = ["resolve_kernel"]

_TORCH_BINARIES = ("libtorch_cuda", "libtorch_hip")


def resolve_kernel(name: str, evidence: Evidence) -> KernelProvenance:
    """Everything the evidence supports about one kernel name."""
    units, unit_grade, binary = evidence.units(name)
    decoded = _with_library(decode(name), binary, evidence)
    template, definition = _template(decoded, units, unit_grade, evidence)
    return KernelProvenance(
        decoded=decoded,
        category=kernel_category(decoded),
        template_arguments=_named_arguments(decoded, definition),
        units=units,
        unit_grade=unit_grade,
        binary=binary,
        location=(
            evidence.user_sources.get(name)
            or _functor(decoded, units, unit_grade, evidence)
            or template
            or _unit_file(units, unit_grade, evidence)
        ),
        template=template,
    )


def _with_library(decoded: DecodedKernel, binary: str | None, evidence: Evidence) -> DecodedKernel:
    """The library by membership where it is known, which outweighs what the name suggests.

    Of PyTorch's own binaries the name tells more: they hold CUTLASS, CUB and others.
    """
    library = None
    if decoded.name in evidence.triton_kernels:
        library = "triton"
    elif binary is not None and not binary.startswith(_TORCH_BINARIES):
        library = vendor_of_file(binary) or binary.partition(".so")[0]
    if library is None:
        return decoded
    return replace(decoded, library=library, grades={**decoded.grades, "library": Grade.EXACT})


def _template(
    decoded: DecodedKernel, units: tuple[str, ...], unit_grade: Grade | None, evidence: Evidence
) -> tuple[SourceLocation | None, Definition | None]:
    if decoded.function is None or not units:
        return None, None
    for source in evidence.sources:
        definition = source.index.kernel(
            decoded.function, units, template_arguments=decoded.template_arguments or None
        )
        if definition is not None:
            return _located(source, definition, units, unit_grade), definition
    return None, None


def _functor(
    decoded: DecodedKernel, units: tuple[str, ...], unit_grade: Grade | None, evidence: Evidence
) -> SourceLocation | None:
    """Where the functor, or the function owning the lambda, of a generic launcher is defined."""
    if decoded.functor is None or not units:
        return None
    for source in evidence.sources:
        definition = source.index.functor(decoded.functor, units)
        if definition is not None:
            return _located(source, definition, units, unit_grade)
    return None


def _located(
    source: IndexedSource, definition: Definition, units: tuple[str, ...], unit_grade: Grade | None
) -> SourceLocation:
    """A definition in the unit's own file has its file from the unit; its line is as good as the index."""
    return source.locate(definition, unit_grade if definition.file in units else None)


def _unit_file(units: tuple[str, ...], unit_grade: Grade | None, evidence: Evidence) -> SourceLocation | None:
    if len(units) != 1 or unit_grade is None:
        return None
    return SourceLocation(units[0], unit_grade, url=evidence.file_url(units[0]) if "/" in units[0] else None)


def _named_arguments(
    decoded: DecodedKernel, definition: Definition | None
) -> tuple[tuple[str | None, str], ...]:
    """Template arguments with the source's own parameter names, where they fit the template."""
    arguments = decoded.template_arguments
    if definition is not None and definition.template_parameters:
        named = named_arguments(definition.template_parameters, arguments)
        if named is not None:
            return tuple(named.items())
    return tuple((None, argument) for argument in arguments)
