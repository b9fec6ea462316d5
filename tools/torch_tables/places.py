"""Where the function that serves an operator lies in a release: what indexes, lines and binaries say.

Indexes are of the release's source tree or its headers, and of the release nearest to it whose tree is at
hand, from which lines move with the checks compiled into the libraries. A binary vetoes files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from opscope.provenance.operators.table import Place, Registered
from opscope.provenance.sources.at_hand import StoredLines, place_of
from opscope.provenance.sources.index import Definition, SourceIndex, is_compiled, is_member, only, split_name
from torch_tables.definitions import signature_distance

# Folder → area; a file in none of them is "generic".
_AREAS = {
    "cuda": "cuda",
    "cudnn": "cuda",
    "hip": "hip",
    "miopen": "hip",
    "mps": "mps",
    "metal": "metal",
    "vulkan": "vulkan",
    "xpu": "xpu",
    "nnapi": "nnapi",
    "xnnpack": "xnnpack",
    "mkldnn": "mkl",
    "mkl": "mkl",
    "cpu": "cpu",
    "functorch": "functorch",
    "test": "test",
    "templates": "test",
}
# Areas in which a key's functions may be defined, in order of preference; areas that are not named hold none.
# MIOpen's functions have CUDA entries too: stubs that raise.
_CUDA = (("cuda",), ("generic",), ("hip",))
_CPU = (("generic", "cpu"), ("mkl", "xnnpack"))
_COMPOSITE = (("generic",), ("cuda", "cpu", "mkl", "vulkan", "metal", "xnnpack", "hip"))
_MPS = (("mps",), ("generic",))


@lru_cache(maxsize=8192)
def area_of(file: str) -> str:
    """The area of a file, such as "cuda", "cpu" or "generic"."""
    if file.endswith((".cu", ".cuh")):
        return "cuda"
    folders = file.split("/")[:-1]
    return next((_AREAS[folder] for folder in reversed(folders) if folder in _AREAS), "generic")


def nearest_to_key(definitions: Sequence[Definition], key: str) -> list[Definition]:
    """The definitions in the likeliest area for a dispatch key; [] if none is where one may be."""
    ends = (("CUDA", _CUDA), ("MPS", _MPS), ("CPU", _CPU), ("", _COMPOSITE))
    for areas in next(areas for end, areas in ends if key.endswith(end)):
        nearest = [definition for definition in definitions if area_of(definition.file) in areas]
        if nearest:
            return nearest
    return []


def native_function(
    index: SourceIndex, name: str, *, key: str = "CUDA", parameters: Sequence[str] | None = None
) -> Definition | None:
    """The native function that a dispatch entry names; None if unknown or ambiguous between files.

    Its line is None if the file holds several that fit. The key says where in the tree it may be defined,
    parameter types (C++ or schema) tell overloads apart.
    """
    scope, plain = split_name(name)
    scopes = (scope,) if scope else ("at::native", "at::meta") if key == "Meta" else ("at::native",)
    kinds = ("function",) if key.startswith("Composite") else ("function", "structured")
    candidates = [
        row
        for row in index.named(plain)
        if row.kind in kinds
        and row.scope in scopes
        and not (row.template_parameters or row.is_specialization)  # no entry names a template
    ]
    if parameters is not None:
        # A structured function's may differ from its schema's: one of another signature comes last.
        distances = [
            2 if distance is None and row.kind == "structured" else distance
            for row in candidates
            for distance in (signature_distance(row.parameters, parameters),)
        ]
        nearest = min((distance for distance in distances if distance is not None), default=-1)
        candidates = [row for row, far in zip(candidates, distances, strict=True) if far == nearest]
    return only(candidates if scope else nearest_to_key(candidates, key), ())


class Places:
    """Places in one release. `lines` say how far those of the second index moved."""

    def __init__(
        self,
        own: SourceIndex | None,
        neighbor: SourceIndex | None,
        lines: StoredLines | None,
        files: Mapping[str, Sequence[str]],
    ) -> None:
        self._indexes = [index for index in (own, neighbor) if index is not None]
        self._own, self._lines, self._files = own, lines, files

    def function(self, name: str, key: str, parameters: Sequence[str], backend: str) -> tuple[
        Place | None, dict[str, tuple[Registered, ...]], tuple[Registered, ...]
    ]:  # fmt: skip
        for index in self._indexes:
            found = native_function(index, name, key=key, parameters=parameters)
            if found is not None:
                place = self._vetoed(name, self._place(index, found))
                stubs = {stub: self._registered(stub, backend) for stub in found.stubs}
                return place, stubs, tuple(self._launched(index, one) for one in found.launchers)
        return self._vetoed(name, None), {}, ()

    def scalar_function(self, name: str) -> Place | None:
        for index in self._indexes:
            if found := index.functor(f"at::native::CUDAFunctor_{name}"):
                return self._place(index, found)
        return None

    def _place(self, index: SourceIndex, found: Definition) -> Place:
        return place_of(found, self._lines, is_own=index is self._own)

    def _vetoed(self, name: str, place: Place | None) -> Place | None:
        """What an index says, held against the release's binary.

        A file that the binary supports is known as well as the binary; one that it contradicts is dropped,
        and so is its line. It says nothing of headers: their functions lie in the units that include them.
        """
        files = self._files.get(name, ())
        if not files or (place is not None and not is_compiled(place.file)):
            return place
        if place is not None and place.file in files:
            fields = (place.line, place.last_line, place.line_from, place.about, place.is_of_release)
            return Place(place.file, "release", *fields)
        return Place(files[0], "release") if len(files) == 1 else None

    def _registered(self, stub: str, backend: str) -> tuple[Registered, ...]:
        """What is registered for a dispatch stub: a function, or the place where something else is."""
        registered = []
        for index in self._indexes:
            for entry in index.registrations:
                if (entry.stub, entry.key) != (stub, backend):
                    continue
                rows = [row for row in index.named(entry.function) if row.kind in ("function", "kernel")]
                own = [row for row in rows if row.file == entry.file and not is_member(row)]
                found = only(own or [row for row in rows if not is_compiled(row.file)], ())
                found = found or Definition("stub", stub, "", entry.file, entry.line, entry.line)
                place = self._place(index, found)
                registered.append(Registered(found.name, entry.file, entry.function, place))
        return tuple(registered)

    def _launched(self, index: SourceIndex, name: str) -> Registered:
        rows = [row for row in index.named(name) if row.file.endswith(".cu")]
        found = only([row for row in rows if row.kind in ("function", "structured", "kernel")], ())
        if found is None:
            return Registered(name, "", name, None)
        return Registered(name, found.file, name, self._vetoed(found.name, self._place(index, found)))
