"""What opscope knows of one name: an operator, a kernel, a category or a source file.

With a trace its calls are added. Without one the tables at hand answer: a Session is made that holds just the
names asked for, so that both ways read the same tables. Imports no renderer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec

from opscope.analysis.provenance import KernelFacts, NativeFunctionUse, Provenance, limited, read_provenance
from opscope.analysis.summary import Summary
from opscope.analysis.totals import KernelTotal, OperatorTotal
from opscope.errors import InputError
from opscope.model.notebook import Shown
from opscope.model.origin import Grade, SourceLocation
from opscope.model.session import Session
from opscope.provenance.categories import OTHER, categories
from opscope.provenance.kernel_names.cxx_name import demangle
from opscope.provenance.kernel_names.vocabulary import CATEGORY_OF_FAMILY
from opscope.provenance.native_functions import OperatorTable, packaged_versions, table_for
from opscope.provenance.resolution.resolvers import session_of_names
from opscope.provenance.sources import is_unit, nearest_index
from opscope.provenance.torch_releases import installed_torch, recognize, release_versions
from opscope.text_enum import TextEnum
from opscope.visible_text import is_shown_as

# Only the name of a kernel looks so, whoever wrote it.
_SIGNATURE = re.compile(r"[<(]|^_Z", re.ASCII)
_FILE = re.compile(r"[\w./+-]+\.(?:cu|cuh|cpp|h|hpp|cc|py)$")
_CATEGORIES = frozenset((OTHER, *(one.name for one in categories()), *CATEGORY_OF_FAMILY.values()))


class Subject(TextEnum):
    OPERATOR = "operator"
    KERNEL = "kernel"
    CATEGORY = "category"
    FILE = "file"


class ExplainedKernel(msgspec.Struct, frozen=True):
    """One kernel, what is known of it, and its launches by operators of the trace (none without a trace)."""

    facts: KernelFacts
    total: KernelTotal | None = None
    operators: tuple[tuple[str | None, KernelTotal], ...] = ()  # (operator or None, its share), longest first


class Explanation(Shown, msgspec.Struct, frozen=True):
    name: str  # as found: `gelu` becomes `aten::gelu`
    subject: Subject  # what it names
    torch_version: str | None  # release the answers are for; None if unknown
    torch_version_grade: Grade | None = None  # how that is known; None if it is not
    torch_version_reason: str | None = None  # the same in words
    overload: str | None = None  # the one asked for; None for all of the operator
    # Native functions: the overloads of the operator, or those implemented in the file
    functions: tuple[NativeFunctionUse, ...] = ()
    # The trace's operators concerned, most device time first; empty without a trace
    operators: tuple[OperatorTotal, ...] = ()
    kernels: tuple[ExplainedKernel, ...] = ()  # the kernels concerned, longest first
    derivatives: tuple[NativeFunctionUse, ...] = ()  # nodes of autograd that differentiate the operator
    summary: Summary | None = None  # of the trace, or None

    @property
    def is_recorded(self) -> bool:
        return bool(self.operators) or any(use.total is not None for use in self.kernels)

    @property
    def owner(self) -> str | None:
        """The operator whose launches of the kernels are looked at; None for whichever launched them."""
        return self.name if self.subject is Subject.OPERATOR else None

    @property
    def locations(self) -> tuple[SourceLocation, ...]:
        """Every place in source code the explanation names, once, in reading order."""
        functions = (*self.functions, *self.derivatives)
        places = [place for one in functions for place in (one.location, one.stub_location)]
        places += [place for one in self.kernels for place in (one.facts.location, one.facts.template)]
        # Of one place the first, so that they are put in from behind.
        known = {(one.file, one.line): one for one in reversed(places) if one is not None}
        order = dict.fromkeys((one.file, one.line) for one in places if one is not None)
        return tuple(known[key] for key in order)


def explain(name: str, session: Session | None = None, *, torch_version: str | None = None) -> Explanation:
    """Everything known of a name, with its calls in a recording if one is given.

    `aten::gelu`, `gelu`, `aten::add.Tensor`; a kernel's name, demangled or mangled (of one in the
    recording also its function's or functor's, and shortened as reports show it); a category (`matrix`) or
    a file (`SoftMax.cu`). Without a recording the release answers that is asked for, else the installed one,
    else the newest packaged.

    Raises:
        InputError: Nothing is known by that name (the message names similar ones), or of that release.
    """
    if torch_version is not None and session is not None:
        raise InputError("a recording tells itself which PyTorch it is of", hint="Leave the release out")
    if torch_version is not None and recognize((), torch_version=torch_version).version is None:
        raise InputError(
            f"nothing is known of PyTorch {torch_version}",
            hint=f"Name one of {', '.join(release_versions())}, or one near to these",
        )
    if torch_version is None and session is None:
        # The installed torch, else the newest release there are tables of.
        torch_version = installed_torch()
        if torch_version is None or recognize((), torch_version=torch_version).version is None:
            torch_version = packaged_versions()[-1]
    wanted = name.strip()
    summary = None if session is None else Summary(session)
    asked = _Asked(summary, torch_version if summary is None else summary.torch_version)
    if wanted in _CATEGORIES:
        known = _all_functions(asked)
        return asked.explanation(
            wanted,
            Subject.CATEGORY,
            known,
            functions=tuple(
                use for uses in known.functions.values() for use in uses if use.category == wanted
            ),
            operators=tuple(one for one in asked.operators if one.category == wanted),
            kernels=asked.uses(one for one in asked.kernels if one.facts and one.facts.category == wanted),
        )
    if _FILE.fullmatch(wanted):
        return _file(wanted, asked)
    operator = _operator_name(wanted, asked)
    # Kernels of the recording by that name, mangled or not; else those of a function of that name.
    names = {wanted, demangle(wanted) or wanted}
    exact = [
        one
        for one in asked.kernels
        if one.name in names
        or (one.name.startswith("_Z") and demangle(one.name) in names)
        or is_shown_as(one.name, wanted)
    ]
    named = (
        one
        for one in asked.kernels
        if one.facts
        and any(
            f"::{part}".endswith(f"::{wanted}")
            for part in (one.facts.function, one.facts.fields.get("functor"))
        )
    )
    recorded = tuple(exact or named)
    # A kernel may have the name that an operator has without its namespace.
    is_kernel = bool(recorded) and recorded[0].name == wanted and (operator or ("",))[0] != wanted
    if operator is not None and not is_kernel:
        return _operator(*operator, asked)
    if recorded:
        name = recorded[0].name if len(recorded) == 1 else wanted
        return asked.explanation(name, Subject.KERNEL, None, kernels=asked.uses(recorded))
    explanation = _kernel(wanted, asked)
    if explanation is None:
        raise _unknown_name(wanted, (entry.name for entry in asked.table.functions), asked, _CATEGORIES)
    return explanation


def cuda_files(summary: Summary, operators: Iterable[OperatorTotal]) -> dict[str, str]:
    """The .cu (or .cpp) file under `cuda/` that would serve each operator of a CPU's recording on a GPU."""
    known = _Asked(summary, summary.torch_version).known(
        [(one.name, use.overload) for one in operators for use in one.native_functions]
    )
    return {
        name: place.file
        for name, uses in known.functions.items()
        for use in uses
        for place in (use.location, use.stub_location)
        if place is not None and "/cuda/" in place.file
    }  # the stub's file, which has the kernels, comes last


class _Asked(msgspec.Struct, frozen=True, dict=True):
    summary: Summary | None
    version: str | None

    @cached_property
    def table(self) -> OperatorTable:
        return table_for(self.version)

    def known(self, operators: Sequence[tuple[str, str | None]], kernels: Iterable[str] = ()) -> Provenance:
        with session_of_names(operators, kernels, torch_version=self.version) as names:
            known = read_provenance(names)
        # Names know the release by its label; of a recording it may be known less well.
        limit = None if self.summary is None else self.summary.torch_version_grade
        return known if limit is None else limited(known, limit)

    @property
    def operators(self) -> tuple[OperatorTotal, ...]:
        return () if self.summary is None else self.summary.operators

    @property
    def kernels(self) -> tuple[KernelTotal, ...]:
        return () if self.summary is None else self.summary.kernels

    def uses(self, kernels: Iterable[KernelTotal]) -> tuple[ExplainedKernel, ...]:
        uses = []
        for facts, key in ((one.facts, (one.name, one.kind)) for one in kernels):
            if facts is not None:
                whole = next(one for one in self.kernels if (one.name, one.kind) == key)
                launched_by = [
                    (operator.name, part)
                    for operator in self.operators
                    for part in operator.kernels
                    if (part.name, part.kind) == key
                ]
                launched_by.sort(key=lambda pair: -pair[1].total_ns)
                uses.append(ExplainedKernel(facts, whole, tuple(launched_by)))
        return tuple(uses)

    def explanation(self, name: str, subject: Subject, known: Provenance | None, **found: Any) -> Explanation:
        source = self.summary or known
        if source is None:
            raise ValueError("neither a recording nor what is known of names")
        release = source.torch_version, source.torch_version_grade, source.torch_version_reason
        return Explanation(name, subject, *release, summary=self.summary, **found)


def _operator_name(wanted: str, asked: _Asked) -> tuple[str, str | None] | None:
    table, recorded = asked.table, {operator.name for operator in asked.operators}
    base, has_overload, overload = wanted.partition(".")
    shown = (one for one in recorded if is_shown_as(one, wanted))
    for candidate in (wanted, base, f"aten::{base}", f"aten::_{base}", *shown):
        overloads = [entry.overload for entry in table.overloads(candidate)]
        if not (candidate in recorded or overloads or table.derivative(candidate)):
            continue
        if candidate == wanted or not has_overload or not overloads:
            return candidate, None
        overload = "" if overload == "default" else overload
        if overload in overloads:
            return candidate, overload
        named = ", ".join(one or "default" for one in overloads)
        raise InputError(f"{candidate} has no overload {overload!r}", hint=f"It has: {named}")
    return None


def _operator(name: str, overload: str | None, asked: _Asked) -> Explanation:
    table = asked.table
    total = next((one for one in asked.operators if one.name == name), None)
    entries = [entry.overload for entry in table.overloads(name) if overload in (None, entry.overload)]
    nodes = [
        one.node
        for one in table.derivatives
        if (f"{name}.{overload}" if overload else name)
        in (one.forward if overload is not None else [each.partition(".")[0] for each in one.forward])
    ]
    overloads: list[str | None] = [*entries] or [None]
    known = asked.known([*((name, one) for one in overloads), *((node, None) for node in nodes)])
    functions = total.native_functions if total else ()
    if overload is not None:
        functions = tuple(
            function
            for function in functions
            if overload == function.overload or overload in function.details.get("candidates", ())
        )
    return asked.explanation(
        name,
        Subject.OPERATOR,
        known,
        overload=overload,
        functions=functions or known.functions.get(name, ()),
        operators=() if total is None else (total,),
        kernels=() if total is None else asked.uses(total.kernels),
        derivatives=tuple(known.functions[node][0] for node in nodes if known.functions.get(node)),
    )


def _kernel(wanted: str, asked: _Asked) -> Explanation | None:
    """A kernel of no recording; None if nothing but its name is known, and that need not be a kernel's."""
    name = demangle(wanted) or wanted
    if not name:
        return None
    known = asked.known((), (name,))
    facts = known.kernels[name]
    is_known = bool(facts.library or facts.family or facts.units or facts.location)
    if not (is_known or _SIGNATURE.search(wanted)):
        return None
    return asked.explanation(name, Subject.KERNEL, known, kernels=(ExplainedKernel(facts),))


def _file(name: str, asked: _Asked) -> Explanation:
    known = _all_functions(asked)
    functions = tuple(use for uses in known.functions.values() for use in uses if _touches(use, name))
    kernels = [one for one in asked.kernels if one.facts and _touches(one.facts, name)]
    if not functions and not kernels:
        index = nearest_index(known.torch_version)
        files = [file for use in chain(*known.functions.values()) for file in _files_of(use)]
        raise _unknown_name(name, [*files, *(() if index is None else index.files)], asked)
    own = {kernel.name for kernel in kernels}
    return asked.explanation(
        name,
        Subject.FILE,
        known,
        functions=functions,
        operators=tuple(
            one
            for one in asked.operators
            if any(kernel.name in own for kernel in one.kernels)
            or any(_touches(use, name) for use in one.native_functions)
        ),
        kernels=asked.uses(kernels),
    )


def _all_functions(asked: _Asked) -> Provenance:
    return asked.known([(entry.name, entry.overload) for entry in asked.table.functions])


def _files_of(one: NativeFunctionUse | KernelFacts) -> list[str]:
    if isinstance(one, NativeFunctionUse):
        return [place.file for place in (one.location, one.stub_location) if place is not None]
    return [*one.units, *(place.file for place in (one.location, one.template) if place is not None)]


def _touches(one: NativeFunctionUse | KernelFacts, name: str) -> bool:
    return any(is_unit(file, (name,)) for file in _files_of(one))


def _unknown_name(
    wanted: str, names: Iterable[str], asked: _Asked, categories: Iterable[str] = ()
) -> InputError:
    """The error that nothing is known by a name; it names similar ones, and a recording's."""
    facts = [one.facts for one in asked.kernels if one.facts is not None]
    every = {*names, *categories}
    if categories:
        every |= {one.function for one in facts if one.function}
        every |= {operator.name for operator in asked.operators}
    else:
        every |= {file for one in facts for file in _files_of(one)}
    # By what people type of them: the last part.
    known = {_last_part(name): name if categories else _last_part(name) for name in sorted(every)}
    # The share of characters that similar names have in common.
    close = difflib.get_close_matches(_last_part(wanted), known, n=5, cutoff=0.7)
    return InputError(
        f"nothing is known by the name {wanted!r}",
        hint=f"Similar: {', '.join(known[name] for name in close)}"
        if close
        else "Give an operator (aten::gelu), a kernel name in quotes, a category (matrix) or a source file "
        "(SoftMax.cu); with --trace also a change, a module or a section of its report",
    )


def _last_part(name: str) -> str:
    return name.rpartition("::")[2].rpartition("/")[2]
