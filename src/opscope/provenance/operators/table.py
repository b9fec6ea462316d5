"""[special_nodes] Backward nodes that no derivatives.yaml names: they are written by hand in PyTorch's autograd.

[table] The operator table of one PyTorch build: native functions and backward nodes, found by name.

[lookup] Which operator table fits a trace: the installed PyTorch's, a packaged release's, or a neighbor's.

Finds an installation without importing it: neither torch nor torchgen runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
import zstandard

from opscope.errors import InputError
from opscope.model.evidence import Grade
from opscope.provenance.cache import cache_folder, write_atomically
from opscope.provenance.installation import package_folders, torch_build
from opscope.provenance.operators.declarations import declared_functions, generated_functions, known_tags
from opscope.provenance.operators.derivatives import backward_nodes
from opscope.provenance.operators.schema import Derivative, NativeFunction

# ---- special_nodes


def _node(name: str, description: str, *forward: str) -> Derivative:
    return Derivative(node=name, forward=forward, description=description)


# Source: torch/csrc/autograd/functions/{accumulate_grad,tensor,basic_ops,comm}.h;
# torch/_functorch/_aot_autograd/runtime_wrappers.py.
SPECIAL_NODES = {
    node.node: node
    for node in (
        _node("torch::autograd::AccumulateGrad", "adds the gradient of a leaf tensor to its .grad"),
        _node("torch::autograd::CopyBackwards", "gradient of a copy between tensors", "aten::copy_"),
        _node("torch::autograd::CopySlices", "gradient of an in-place operator on a view of its base"),
        _node("torch::autograd::GraphRoot", "start of the backward pass: hands out the given gradients"),
        _node("torch::autograd::UndefinedGrad", "passes undefined gradients on"),
        _node("torch::autograd::UndefinedGradBackward", "passes undefined gradients on"),
        _node("torch::autograd::Identity", "passes gradients on"),
        _node("torch::autograd::Scatter", "splits a tensor over devices"),
        _node("torch::autograd::Gather", "joins tensors of several devices"),
        _node("CompiledFunctionBackward", "backward graph that torch.compile compiled"),
    )
}


# ---- table

# In a folder `torchgen/packaged` of a PyTorch installation.
NATIVE_FUNCTIONS_YAML = "ATen/native/native_functions.yaml"
TAGS_YAML = "ATen/native/tags.yaml"
DERIVATIVES_YAML = "autograd/derivatives.yaml"

FORMAT = 1
_COMPRESSION_LEVEL = 19
_LARGEST_BYTES = 64 << 20
_EVALUATE = "autograd::engine::evaluate_function: "


class OperatorTable:
    """Native functions and backward nodes of one build.

    Args:
        functions: Declared ones in the order of the yaml, then generated ones.
        derivatives: In the order of the yaml.
        version: Of PyTorch, e.g. `2.13.0`; None if unknown.
        git_version: Commit it was built from.
        grade: What its facts are worth for the trace at hand.
    """

    def __init__(
        self,
        functions: Iterable[NativeFunction],
        derivatives: Iterable[Derivative],
        *,
        version: str | None = None,
        git_version: str | None = None,
        grade: Grade = Grade.EXACT,
    ) -> None:
        self.functions = tuple(functions)
        self.derivatives = tuple(derivatives)
        self.version = version
        self.git_version = git_version
        self.grade = grade
        self._overloads: dict[str, list[NativeFunction]] = {}
        for entry in self.functions:
            self._overloads.setdefault(entry.name, []).append(entry)
        self._nodes = {derivative.node: derivative for derivative in self.derivatives}

    def __repr__(self) -> str:
        return f"<OperatorTable {self.version or 'of unknown version'}, {len(self.functions)} functions>"

    def entry(self, name: str, overload: str = "") -> NativeFunction | None:
        """One native function, by `aten::add` and `Tensor`."""
        return next((one for one in self._overloads.get(name, ()) if one.overload == overload), None)

    def overloads(self, name: str) -> tuple[NativeFunction, ...]:
        """All native functions of a name; empty for an operator that no yaml entry describes."""
        return tuple(self._overloads.get(name, ()))

    def named(self, qualified_name: str) -> NativeFunction | None:
        """One native function by `aten::add.Tensor`."""
        name, _, overload = qualified_name.partition(".")
        return self.entry(name, overload)

    def derivative(self, node: str) -> Derivative | None:
        """A backward node by its name, with or without `autograd::engine::evaluate_function: `.

        None for the node of a user's own `autograd.Function`, and for one of another release.
        """
        name = node.removeprefix(_EVALUATE)
        return self._nodes.get(name) or SPECIAL_NODES.get(name)

    def called_functions(self, derivative: Derivative) -> dict[str, tuple[NativeFunction, ...]]:
        """The overloads of each operator that a node's formulas call."""
        return {name: self.overloads(name) for name in derivative.functions}

    def graded(self, grade: Grade) -> OperatorTable:
        """The same facts, worth this much."""
        return OperatorTable(
            self.functions,
            self.derivatives,
            version=self.version,
            git_version=self.git_version,
            grade=grade,
        )


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    format: int
    version: str | None
    git_version: str | None
    functions: tuple[NativeFunction, ...]
    derivatives: tuple[Derivative, ...]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    format: int


def build_operator_table(
    packaged: Path, *, version: str | None = None, git_version: str | None = None
) -> OperatorTable:
    """The table of a PyTorch installation, from the yaml files it ships. Takes about a second.

    Args:
        packaged: Its folder `torchgen/packaged`.
        version: Of PyTorch.
        git_version: Commit it was built from.

    Raises:
        InputError: A file is missing or not what it should be.
    """
    tags = known_tags(packaged / TAGS_YAML)
    functions = declared_functions(packaged / NATIVE_FUNCTIONS_YAML, tags)
    functions += generated_functions(functions, tags)
    derivatives = backward_nodes(packaged / DERIVATIVES_YAML, functions)
    return OperatorTable(functions, derivatives, version=version, git_version=git_version)


def encode_table(table: OperatorTable) -> bytes:
    """A table as it is stored: MessagePack, compressed with zstandard. Its grade is not part of it."""
    stored = _Stored(FORMAT, table.version, table.git_version, table.functions, table.derivatives)
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(msgspec.msgpack.encode(stored))


def decode_table(content: bytes, *, source: str | Path, grade: Grade) -> OperatorTable:
    """The table that `encode_table` stored.

    Raises:
        InputError: It is none, or has another format.
    """
    try:
        if zstandard.frame_content_size(content) > _LARGEST_BYTES:
            raise InputError("too large for an operator table", source=source)
        plain = zstandard.ZstdDecompressor().decompress(content, max_output_size=_LARGEST_BYTES)
        found = msgspec.msgpack.decode(plain, type=_Head).format
        if found != FORMAT:
            raise InputError(f"an operator table of format {found}, not {FORMAT}", source=source)
        stored = msgspec.msgpack.decode(plain, type=_Stored)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise InputError(f"not an operator table ({error})", source=source) from error
    return OperatorTable(
        stored.functions,
        stored.derivatives,
        version=stored.version,
        git_version=stored.git_version,
        grade=grade,
    )


# ---- lookup

TABLE_FILE = "operators.msgpack.zst"
_YAML_FILES = (NATIVE_FUNCTIONS_YAML, TAGS_YAML, DERIVATIVES_YAML)
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def table_for(version: str | None, git_version: str | None = None) -> OperatorTable:
    """The best table for a trace made by a version of PyTorch, graded for it.

    Args:
        version: As `torch.__version__` says; None if unknown.
        git_version: The commit, where known; then only that installation counts as the same.

    Raises:
        InputError: A table cannot be read, or none is packaged.
    """
    installed = installed_table()
    if installed is not None and _is_same_build(installed, version, git_version):
        return installed
    exact = packaged_table(version)
    if exact is not None:
        return exact
    neighbor = packaged_table(_nearest(version, packaged_versions()))
    if neighbor is None:
        raise InputError("no operator table is packaged", hint="Reinstall opscope")
    return neighbor.graded(Grade.NEIGHBOR_VERSION)


def installed_table() -> OperatorTable | None:
    """The table of the PyTorch that this Python would import; None if there is none or its files are broken.

    Built on the first call for a set of yaml files (a second), then read from the cache.
    """
    folders = package_folders("torchgen")
    if not folders:
        return None
    packaged = folders[0] / "packaged"
    build = next((torch_build(folder) for folder in package_folders("torch")[:1]), None)
    version, git_version = build or (None, None)
    try:
        contents = [(packaged / name).read_bytes() for name in _YAML_FILES]
    except OSError:
        return None
    digest = hashlib.sha256(b"\0".join([*contents, f"{FORMAT} {version} {git_version}".encode()])).hexdigest()
    return _cached_table(packaged, digest[:32], version, git_version)


@cache
def packaged_table(version: str | None) -> OperatorTable | None:
    """The table of exactly this release, packaged or added by the user; None if there is none.

    Raises:
        InputError: There is one, but it cannot be read.
    """
    stored = _stored_tables()
    # A user may have added a build under its whole label.
    path = None if version is None else stored.get(version) or stored.get(_public(version))
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", source=path) from error
    return decode_table(content, source=path, grade=Grade.RELEASE_INDEX)


def packaged_versions() -> tuple[str, ...]:
    """Releases with a table, oldest first."""
    return tuple(sorted((v for v in _stored_tables() if _RELEASE.match(v)), key=_release_key))


@cache
def _cached_table(
    packaged: Path, key: str, version: str | None, git_version: str | None
) -> OperatorTable | None:
    path = cache_folder() / "operators" / f"{key}.msgpack.zst"
    with contextlib.suppress(OSError, InputError):  # absent, or from a damaged disk: built anew
        return decode_table(path.read_bytes(), source=path, grade=Grade.EXACT)
    try:
        table = build_operator_table(packaged, version=version, git_version=git_version)
    except InputError:
        return None
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a second each time
        write_atomically(path, encode_table(table))
    return table


def _stored_tables() -> dict[str, Path]:
    """Table files by release; what the user added comes before what is packaged."""
    packaged = Path(str(resources.files("opscope.provenance"))) / "releases" / "data"
    found: dict[str, Path] = {}
    for root in (packaged, cache_folder() / "releases"):
        found.update({path.parent.name: path for path in sorted(root.glob(f"*/{TABLE_FILE}"))})
    return found


def _is_same_build(table: OperatorTable, version: str | None, git_version: str | None) -> bool:
    if git_version is not None and table.git_version is not None:
        return git_version == table.git_version
    if version is None or table.version is None:
        return False
    return version == table.version or (
        _public(version) == _public(table.version) and _RELEASE.fullmatch(_public(version)) is not None
    )


def _public(version: str) -> str:
    """The version without its local part: `2.13.0` of `2.13.0+cu130`."""
    return version.partition("+")[0]


def _nearest(version: str | None, versions: tuple[str, ...]) -> str | None:
    """The nearest release by minor version, the later of two; the last one for an unknown version.

    A function that a release lacks was more often added later than removed before.
    """
    if not versions:
        return None
    wanted = None if version is None else _RELEASE.match(version)
    if wanted is None:
        return versions[-1]
    key = _release_key(wanted[0])
    return min(reversed(versions), key=lambda one: _distance(_release_key(one), key))


def _release_key(version: str) -> tuple[int, int, int]:
    match = _RELEASE.match(version)
    return (0, 0, 0) if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def _distance(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int]:
    releases = 1000 * (one[0] - other[0]) + one[1] - other[1]
    return abs(releases), abs(one[2] - other[2])
