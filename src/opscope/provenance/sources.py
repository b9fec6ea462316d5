"""Where PyTorch's kernels and functors are defined, to the line, and where its sources are at hand.

Definitions of a source tree are held by name, and made into objects when a name is asked for. Names, files
and lines, no source text. Look-ups take what the binary says: the translation units that hold the symbol. A
definition in another unit's file is never returned, and where files remain that nothing tells apart the
answer is None: a wrong place is worse than none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, product
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import msgspec

from opscope.model.origin import Grade, SourceLocation
from opscope.provenance.generated_code import LARGEST_FILE_BYTES, is_generated
from opscope.provenance.native_functions import Place
from opscope.provenance.packaged import TableFormat, lazy_pattern
from opscope.provenance.torch_releases import COMMIT, nearest_release, package_folders


class Definition(msgspec.Struct, frozen=True):
    # Function, structured (TORCH_IMPL_FUNC), kernel (`__global__`), class, or stub (a dispatch stub)
    kind: str
    name: str  # without its scope and without template arguments
    scope: str  # namespaces and classes around it, joined by `::`
    file: str  # path in the PyTorch repository
    # Of the name; None if several definitions in the file fit and nothing tells which one it is
    line: int | None
    end_line: int | None  # of the closing brace; None where `line` is
    # Names of its own template parameters; a pack ends in `...`, unnamed ones are ""
    template_parameters: tuple[str, ...] = ()
    parameters: str = ""  # coarse types of its parameters, joined by ", "
    stubs: tuple[str, ...] = ()  # dispatch stubs it calls
    is_specialization: bool = False  # for particular template arguments only
    # Of C++ code, the functions it calls that a `.cu` file defines and no other file does
    launchers: tuple[str, ...] = ()


# A definition in the file, its texts by number, its last line by how far it is from the first.
INDEX_COLUMNS = (
    "kind", "scope", "file", "line", "end_line", "template_parameters", "parameters", "stubs",
    "is_specialization", "launchers",
)  # fmt: skip
INDEX_TEXTS = ("kind", "scope", "file", "template_parameters", "parameters", "stubs", "launchers")
# `function` (its name, "" if that is not plain) implements `stub` for a dispatch `key` at `file` and `line`.
Registration = tuple[str, str, str, str, int]


class SourceIndex(msgspec.Struct, frozen=True, array_like=True, eq=False):
    format_version: int
    version: str  # of PyTorch, "2.6.0"
    git_version: str | None  # commit of the tree, if it was known when the table was built
    texts: list[str | tuple[str, ...]]
    rows: dict[str, msgspec.Raw]  # by name, made into objects when asked for; of one by file and line
    registrations: tuple[Registration, ...]  # for dispatch stubs

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted({one.file for one in self}))

    def __iter__(self) -> Iterator[Definition]:
        return chain.from_iterable(map(self.named, self.rows))

    def named(self, name: str) -> tuple[Definition, ...]:
        """Definitions of a name without scope, by file and line."""
        rows = self.rows.get(name)
        if rows is None:
            return ()
        found = []
        for row in msgspec.msgpack.decode(rows):
            fields = dict(zip(INDEX_COLUMNS, row, strict=True))
            fields |= {field: self.texts[fields[field]] for field in INDEX_TEXTS}
            fields["end_line"] += fields["line"]
            found.append(Definition(name=name, **fields))
        return tuple(found)

    def kernel(
        self, base_name: str, units: Sequence[str] = (), *, template_arguments: Sequence[str] | None = None
    ) -> Definition | None:
        """The `__global__` function of a kernel.

        Files of the units that register it come first, then headers; templates that the arguments fit, first.
        """
        candidates = [row for row in self._in_scope(base_name) if row.kind == "kernel"]
        if template_arguments is not None:
            fitting = [
                row
                for row in candidates
                if fits(row.template_parameters, template_arguments)
                or (row.is_specialization and template_arguments)
            ]
            candidates = fitting or candidates
        return only(allowed(candidates, units), units)

    def functor(self, owner: str, units: Sequence[str] = ()) -> Definition | None:
        """The functor class, or the function around a lambda, that a kernel's template arguments name.

        Files of the units that register the kernel come first, then headers.
        """
        if ufunc := _UFUNC_FUNCTOR.fullmatch(owner):  # generated at build time from a hand-written inner loop
            loops = [row for row in self.named(ufunc[1]) if row.file == f"{_UFUNC_FOLDER}/{ufunc[1]}.h"]
            return only([row for row in loops if "Vectorized" not in row.parameters], ())
        while owner.endswith("::operator()"):
            owner = owner.removesuffix("::operator()")
        scope, plain = split_name(owner)
        parent_scope, parent = split_name(scope)
        kinds: tuple[str, ...] = ("class", "function", "kernel")
        if plain == "impl" and parent.startswith(_STRUCTURED_PREFIX):
            kinds = ("structured",)
            owner = f"{parent_scope}::{parent.removeprefix(_STRUCTURED_PREFIX)}"
        return only(allowed((row for row in self._in_scope(owner) if row.kind in kinds), units), units)

    def _in_scope(self, name: str) -> list[Definition]:
        scope, plain = split_name(name)
        rows = self.named(plain)
        return [row for row in rows if matches_scope(row.scope, scope)] if scope else list(rows)


INDEX_FORMAT = TableFormat(
    "a source index",
    SourceIndex,
    3,
    hint="Build it again with this version",
    has_checksum=True,
    file="sources.msgpack.zst",
)
source_index, indexed_versions = INDEX_FORMAT.of_release, INDEX_FORMAT.releases
# Of the headers a release ships: most kernel templates are in headers, so their lines are the release's own
# even without its source tree.
HEADERS_FORMAT = msgspec.structs.replace(INDEX_FORMAT, file="headers.msgpack.zst")

# What stands for an anonymous namespace: c++filt's words, or the unit's own name as nvcc writes it.
_ANONYMOUS = lazy_pattern(r"\(anonymous namespace\)|_(?:INTERNAL|GLOBAL__N)_\w*|_NV_ANON_NAMESPACE")
# A namespace named by a macro, `namespace FLASH_NAMESPACE`, may be any.
_MACRO = lazy_pattern(r"[A-Z][A-Z0-9_]+")


def split_name(name: str) -> tuple[str, str]:
    """Scope and last part of a qualified name without template arguments."""
    scope, _, plain = name.strip().removeprefix("::").rpartition("::")
    return scope, plain


def matches_scope(written: str, symbol: str) -> bool:
    """Whether the scope in a source file may be the one in a symbol; anonymous namespaces do not count."""
    source, target = _parts(written), _parts(symbol)
    if not any(_MACRO.fullmatch(part) for part in source):
        return source == target
    plain = [part for part in source if not _MACRO.fullmatch(part)]
    return plain == target or (
        len(source) == len(target)
        and all(_MACRO.fullmatch(mine) or mine == theirs for mine, theirs in zip(source, target, strict=True))
    )


def _parts(scope: str) -> list[str]:
    return [part for part in scope.split("::") if part and not _ANONYMOUS.fullmatch(part)]


def is_compiled(file: str) -> bool:
    """Whether a file is a translation unit of its own, not a header."""
    return file.endswith((".cu", ".cpp", ".cc", ".mm", ".c"))


_UFUNC_FOLDER = "aten/src/ATen/native/ufunc"
_UFUNC_FUNCTOR = lazy_pattern(
    r"(?:at::native::)?(?:\(anonymous namespace\)::)?CUDAFunctor(?:OnSelf|OnOther)?_(\w+)"
)


_STRUCTURED_PREFIX = "structured_"


def allowed(definitions: Iterable[Definition], units: Sequence[str]) -> list[Definition]:
    """Without those in the file of another translation unit."""
    if not units:
        return list(definitions)
    return [row for row in definitions if not is_compiled(row.file) or is_unit(row.file, units)]


def is_unit(file: str, units: Sequence[str]) -> bool:
    """Whether a file is one of the units, which are paths or names."""
    return any(file == unit or file.endswith(f"/{unit}") for unit in units)


def only(candidates: Sequence[Definition], units: Sequence[str]) -> Definition | None:
    """The one definition that remains: of a unit's own file before headers, whole files before lines.

    In one file a template comes before its specializations, a class before functions.
    """
    rows = [row for row in candidates if is_unit(row.file, units)] or list(candidates)
    if len({row.file for row in rows}) != 1:
        return None
    general = [row for row in rows if not row.is_specialization] or rows
    remaining = [row for row in general if row.kind == "class"] or general
    first = remaining[0]
    if len(remaining) == 1:
        return first
    return Definition(first.kind, first.name, first.scope, first.file, None, None)


PACK = "..."


def fits(parameters: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether so many arguments can instantiate a template with these parameters."""
    packs = sum(name.endswith(PACK) for name in parameters)
    if packs == 0:
        return len(arguments) == len(parameters)
    return packs == 1 and len(arguments) >= len(parameters) - 1


def named_arguments(parameters: Sequence[str], arguments: Sequence[str]) -> Mapping[str, str] | None:
    """Argument by parameter name, in the template's order; None if they do not fit each other.

    A pack takes all arguments that the others leave, joined by ", ". Parameters without a name are left out.
    """
    if not fits(parameters, arguments):
        return None
    surplus, left = len(arguments) - len(parameters) + 1, iter(arguments)
    named = {
        name.removesuffix(PACK): ", ".join(islice(left, surplus if name.endswith(PACK) else 1))
        for name in parameters
    }
    named.pop("", None)
    return named


# Which source indexes and files are at hand, and where PyTorch's files lie: paths, permalinks, lines.
#
# Finds an installation without importing it. Of a release without a source tree the lines are known by checks
# (`TORCH_CHECK`, launch checks), which leave their line in the libraries of every release. Between two checks
# that moved equally far from the indexed tree everything did; else a definition lies somewhere between them.

_ADDRESS = "https://github.com/pytorch/pytorch/blob"
# Folders of the include folder → those of the repository; other folders belong to third parties.
_MOVED = {"ATen": "aten/src/ATen", "THC": "aten/src/THC"}
_KEPT = frozenset(("c10", "torch", "caffe2"))
_REPOSITORY_FOLDERS = ("aten/", "c10/", "torch/", "caffe2/", "functorch/", "torchgen/", "tools/", "test/")
# Headers that the build writes: no such file is in the repository.
_GENERATED = lazy_pattern(
    r"ATen/ops/.*"
    r"|ATen/(?:\w*Functions(?:_inl)?|MethodOperators|Operators|RegistrationDeclarations|VmapGeneratedPlumbing"
    r"|Config)\.h"
    r"|ATen/core/(?:TensorBody|aten_interned_strings|enum_tag)\.h"
    r"|ATen/cuda/CUDAConfig\.h"
    r"|c10/(?:.*/)?\w*cmake_macros\.h"
    r"|torch/csrc/autograd/generated/.*"
    r"|torch/csrc/api/include/torch/version\.h"
    r"|torch/(?:headeronly/)?version\.h"
)


def repository_path(header: str) -> str | None:
    """Path in the repository of a header in `torch/include`; None for generated and third-party ones."""
    if not is_plain_path(header) or _GENERATED.fullmatch(header):
        return None
    top, _, rest = header.partition("/")
    if top in _MOVED and rest:
        return f"{_MOVED[top]}/{rest}"
    return header if top in _KEPT and rest else None


def include_path(file: str) -> str | None:
    """Path in `torch/include` of a file of the repository, the inverse of `repository_path`."""
    for top, folder in _MOVED.items():
        if file.startswith(f"{folder}/"):
            return f"{top}{file.removeprefix(folder)}"
    return file if file.partition("/")[0] in _KEPT else None


def permalink(
    git_version: str | None, file: str, line: int | None = None, end_line: int | None = None
) -> str | None:
    """Address of lines of a file at a commit of pytorch/pytorch.

    None for what that repository does not hold: submodules, generated files, an unknown commit.
    """
    path = file if file.startswith(_REPOSITORY_FOLDERS) else repository_path(file)
    if path is None or git_version is None or not COMMIT.fullmatch(git_version) or not is_plain_path(path):
        return None
    if repository_path(include_path(path) or path) is None and include_path(path) is not None:
        return None
    lines = ""
    if line is not None and line >= 1:
        lines = f"#L{line}-L{end_line}" if end_line is not None and end_line > line else f"#L{line}"
    return f"{_ADDRESS}/{git_version}/{quote(path)}{lines}"


def is_plain_path(path: str) -> bool:
    """Whether a path is relative and goes nowhere but down."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and not {"..", "\\", "\0"} & {*parts, *path}


_GUARD = "#if !defined(TORCH_STABLE_ONLY)"
_MOST_LINES = 2000


def read_lines(file: str, line: int, end_line: int | None, roots: Sequence[Path]) -> list[str] | None:
    """At most 2000 lines of a file, without line ends, from the first root that has it.

    Nothing outside the roots is read, whatever links they hold.
    """
    last = line if end_line is None else end_line
    if line < 1 or last < line or not is_plain_path(file):
        return None
    for root, relative in product(roots, dict.fromkeys((file, include_path(file) or file))):
        with suppress(OSError, RuntimeError):
            folder = Path(root).resolve(strict=True)
            path = (folder / relative).resolve(strict=True)
            if path.is_file() and path.is_relative_to(folder) and path.stat().st_size <= LARGEST_FILE_BYTES:
                text = without_guard(path.read_text(encoding="utf-8", errors="replace"))
                lines = text.removesuffix("\n").split("\n")
                return lines[line - 1 : min(last, line + _MOST_LINES - 1)] or None
    return None


def without_guard(header: str) -> str:
    """A header's text as the repository has it: wheels since 2.10 put a line in front of it."""
    return header.partition("\n")[2] if header.startswith(_GUARD) else header


def nearest_index(version: str | None) -> SourceIndex | None:
    """The index of the release nearest to a version, by minor releases; the newest for an unknown one."""
    return source_index(nearest_release(version, indexed_versions()))


def source_reader(
    checkout: Path | None = None, copies: Sequence[Path] = (), folders: Sequence[Path] = ()
) -> Callable[[SourceLocation], list[str] | None]:
    """A function that gives the lines at a location, from a checkout or the installed headers.

    A user's own or a generated file (an absolute path) is read where it lies, else from its copy; but a
    recording, which may be a stranger's, names it. So where it lies is a folder given here, or it is named by
    the hash of generated code. None stands for a file that is not at hand. The checkout is looked at first;
    `copies` are folders with copies of generated files, `folders` those of the recordings.
    """
    allowed = [folder.resolve() for folder in (checkout, *folders) if folder is not None]
    roots = [*filter(None, [checkout]), *(folder / "include" for folder in package_folders("torch"))]

    def read(location: SourceLocation) -> list[str] | None:
        if location.line is None:
            return None
        path = Path(location.file)
        if not path.is_absolute():
            return read_lines(location.file, location.line, location.end_line, roots)
        is_own = any(path.parent.resolve().is_relative_to(folder) for folder in allowed)
        place = [path.parent] if is_own or is_generated(path.name) else []
        return read_lines(path.name, location.line, location.end_line, [*place, *copies])

    return read


# A wider range of lines helps nobody to find a function.
_WIDEST_BRACKET = 150

# First and last line of the index between which every check moved by the same number of lines, and that.
Segment = tuple[int, int, int]


class StoredLines(msgspec.Struct, array_like=True):
    format_version: int
    indexed: str  # the release whose source tree is indexed
    files: dict[str, tuple[Segment, ...]]  # in the order of their lines
    # Indexed lines of which no segment tells, and that checks of functions around them contradict
    contradicted: dict[str, tuple[int, ...]] = {}


LINES_FORMAT = TableFormat("a table of lines", StoredLines, file="lines.msgpack.zst")


class Moved(msgspec.Struct, frozen=True):
    """Where something that begins at a line of the index begins: from `line` to `last`, if that is not None.

    `line` is None where the evidence contradicts the indexed line and tells no other one. The grade is
    `COMPILED`, `BRACKET`, or `NEIGHBOR_VERSION` for the indexed line itself.
    """

    line: int | None
    last: int | None = None
    grade: Grade = Grade.NEIGHBOR_VERSION


def place_of(found: Definition, lines: StoredLines | None, *, is_own: bool) -> Place:
    """Where a definition of an index lies in a release: the index's own one, or one whose lines moved so."""
    file, line, last = found.file, found.line, found.end_line
    if is_own:
        return Place(file, "release", line, last, "release" if line else None)
    if line is None or lines is None:
        return Place(file, "neighbor_version", line, last, "neighbor_version" if line else None, None, False)
    moved = moved_in(lines, file, line)
    if moved.line is None:
        return Place(file, "neighbor_version")
    if moved.grade is Grade.NEIGHBOR_VERSION:
        return Place(file, "neighbor_version", line, last, "neighbor_version", None, False)
    if moved.grade is Grade.BRACKET:
        about = min(max(line, moved.line), moved.last or moved.line)
        return Place(file, "bracket", moved.line, moved.last, "bracket", about)
    end = moved_in(lines, file, last or line)
    end_line = end.line if end.grade is Grade.COMPILED else None
    return Place(file, "compiled", moved.line, end_line, "compiled")


def moved_in(table: StoredLines, file: str, line: int) -> Moved:
    segments = table.files.get(file, ())
    is_wrong = line in table.contradicted.get(file, ())
    if is_wrong or not segments:
        return Moved(None if is_wrong else line)
    # The beginning of the file stayed where it is.
    known = ((0, 0, 0), *segments)
    index = bisect_right(known, line, key=lambda segment: segment[0]) - 1
    _, last, delta = known[index]
    if line <= last:
        return Moved(line + delta, grade=Grade.COMPILED)
    if index + 1 == len(known):
        return Moved(line if delta == 0 else None)
    after, _, next_delta = known[index + 1]
    if next_delta == delta:
        return Moved(line + delta, grade=Grade.COMPILED)
    lowest, highest = max(1, last + delta + 1), after + next_delta
    if highest - lowest <= _WIDEST_BRACKET:
        return Moved(lowest, highest, Grade.BRACKET)
    return Moved(line if lowest <= line <= highest else None)


def release_lines(version: str, indexed: str) -> StoredLines | None:
    """How far lines moved from an indexed release to another one; None if that is not known."""
    table = LINES_FORMAT.of_release(version)
    return None if table is None or table.indexed != indexed else table
