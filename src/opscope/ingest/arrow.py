"""Columns in memory as rows that the engine reads in place, by Arrow's C data and stream interfaces.

Source: https://arrow.apache.org/docs/format/CDataInterface.html and …/CDataInterface/PyCapsuleInterface.html.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_FEW_KEYS = 1 << 16  # are told apart without being sorted
_NULLABLE = 2
_LONGEST_ERROR = 400
_TEXT_FORMATS = ("u", "json")
# The engine takes such texts without parsing each: one pair of key and value, each behind its length.
_IS_JSON = ctypes.create_string_buffer(
    b"".join(
        one if isinstance(one, bytes) else one.to_bytes(4, sys.byteorder)
        for one in (1, 20, b"ARROW:extension:name", 10, b"arrow.json")
    )
)


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", c_char_p), ("name", c_char_p), ("metadata", c_void_p), ("flags", c_int64),
    ("child_count", c_int64), ("children", POINTER(POINTER(_Schema))), ("dictionary", POINTER(_Schema)),
    ("release", c_void_p), ("private", c_void_p),
]  # fmt: skip
_Array._fields_ = [
    ("length", c_int64), ("null_count", c_int64), ("offset", c_int64), ("buffer_count", c_int64),
    ("child_count", c_int64), ("buffers", POINTER(c_void_p)), ("children", POINTER(POINTER(_Array))),
    ("dictionary", POINTER(_Array)), ("release", c_void_p), ("private", c_void_p),
]  # fmt: skip
_GET_SCHEMA, _GET_NEXT = (CFUNCTYPE(c_int, POINTER(_Stream), POINTER(of)) for of in (_Schema, _Array))
_GET_ERROR, _RELEASE_STREAM = CFUNCTYPE(c_void_p, POINTER(_Stream)), CFUNCTYPE(None, POINTER(_Stream))
_Stream._fields_ = [
    ("get_schema", _GET_SCHEMA), ("get_next", _GET_NEXT), ("get_last_error", _GET_ERROR),
    ("release", _RELEASE_STREAM), ("private", c_void_p),
]  # fmt: skip


def _forget(of: Any) -> Any:
    """A function that marks a struct as released; its memory is Python's."""
    return CFUNCTYPE(None, POINTER(of))(lambda struct: setattr(struct.contents, "release", None))


_FORGET_SCHEMA, _FORGET_ARRAY = _forget(_Schema), _forget(_Array)
# What the engine has not released: streams, each of which holds its rows; batches, with what they point to.
# Rows that held their streams in turn would be freed by the garbage collector alone, with hundreds of
# megabytes.
_open_streams: dict[int, _Stream] = {}
_open_batches: dict[int, list[Any]] = {}
_numbers = itertools.count(1)


def _end_batch(array: Any) -> None:
    array.contents.release = None
    _open_batches.pop(array.contents.private, None)


_END_BATCH = CFUNCTYPE(None, POINTER(_Array))(_end_batch)


def _end_stream(stream: Any) -> None:
    stream.contents.release = _RELEASE_STREAM(0)
    _open_streams.pop(stream.contents.private, None)


_END_STREAM = _RELEASE_STREAM(_end_stream)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]


class Texts:
    """Texts, None shown as an empty one, that rows refer to by their places."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        self.texts = texts

    @cached_property
    def encoded(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """All in UTF-8, one behind the other; `int32[n + 1]` of where each begins, and the last ends."""
        encoded = [(one or "").encode() for one in self.texts]
        ends = np.zeros(len(encoded) + 1, dtype=np.int32)
        np.cumsum([len(one) for one in encoded], out=ends[1:])
        return np.frombuffer(b"".join(encoded) or b"\0", dtype=np.uint8), ends


Column = tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]  # values, and a bit per row: is there one


class RowPart(NamedTuple):
    """Some rows: their columns, and the texts that columns of texts are int32 places of."""

    row_count: int
    columns: dict[str, Column]
    texts: Texts

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        if name not in self.columns:
            return np.zeros(self.row_count, dtype=bool)
        return unpacked(self.columns[name][1], self.row_count)

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """A column of integers, or the places of one of texts; -1 where there is none."""
        if name not in self.columns:
            return np.full(self.row_count, -1)
        flags, values = self.has(name), self.columns[name][0].astype(np.int64, copy=False)
        return values if flags.all() else np.where(flags, values, np.int64(-1))

    def distinct(self, *names: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows that are equal in some columns get one number, in the order of their first rows; these."""
        number, first = _numbered(self.integers(names[0]))
        for name in names[1:]:
            other, found = _numbered(self.integers(name))
            number, first = _numbered(number * len(found) + other)
        return number, first

    def values(self, name: str, rows: npt.NDArray[np.int64] | slice = slice(None)) -> list[Any]:
        """What some rows have in a column; None where there is none."""
        flags = self.has(name)[rows].tolist()
        found = self.columns[name][0][rows].tolist() if name in self.columns else flags
        shown = map(self.texts.texts.__getitem__, found) if self.is_text(name) and any(flags) else found
        return [one if is_there else None for one, is_there in zip(shown, flags, strict=True)]

    def told(self, tell: Callable[..., Any], *names: str) -> npt.NDArray[Any]:
        """What a function says of each row by its values in some columns; None stands for none.

        It is asked once about equal ones, in the order of their first rows.
        """
        number, first = self.distinct(*names)
        return np.asarray(np.array(list(map(tell, *(self.values(name, first) for name in names))))[number])

    def is_text(self, name: str) -> bool:
        return name in self.columns and self.columns[name][0].dtype == np.int32

    def given(self, computed: Mapping[str, npt.NDArray[Any]]) -> RowPart:
        """With more columns: flags, or integers of which -1 stands for none."""
        added = {
            name: (packed(values), packed(np.ones(len(values), dtype=bool)))
            if values.dtype == bool
            else (np.ascontiguousarray(values, dtype=np.int64), packed(values != -1))
            for name, values in computed.items()
        }
        return self._replace(columns={**self.columns, **added})

    def retold(self, name: str, tell: Callable[..., str | None], *of: str) -> RowPart:
        """With a column of texts: what a function makes of each value of others."""
        texts: dict[str | None, int] = {}
        places = self.told(lambda *values: texts.setdefault(tell(*values), len(texts)), *of)
        is_there = np.array([one is not None for one in texts])[places]
        column = (places + len(self.texts.texts)).astype(np.int32), packed(is_there)
        return RowPart(self.row_count, {**self.columns, name: column}, Texts([*self.texts.texts, *texts]))

    def records(self) -> list[dict[str, Any]]:
        names = tuple(self.columns)
        rows = zip(*map(self.values, names), strict=True)
        return [{key: one for key, one in zip(names, row, strict=True) if one is not None} for row in rows]

    def taken(self, chosen: npt.NDArray[Any] | slice, names: Iterable[str] | None = None) -> RowPart:
        """Some of the rows, by their positions or by flags, and of the columns."""
        columns: dict[str, Column] = {}
        count = len(np.empty(self.row_count, dtype=bool)[chosen])
        for name in self.columns if names is None else names:
            if name in self.columns:
                flags = self.has(name)[chosen]
                if flags.any():
                    columns[name] = self.columns[name][0][chosen], packed(flags)
        return RowPart(count, columns, self.texts)

    def compact(self) -> RowPart:
        """With those texts only that some row has."""
        places = {name: column[0] for name, column in self.columns.items() if self.is_text(name)}
        is_used = np.zeros(len(self.texts.texts), dtype=bool)
        for values in places.values():
            is_used[values] = True
        place = np.cumsum(is_used, dtype=np.int32) - 1
        columns = {name: (place[values], self.columns[name][1]) for name, values in places.items()}
        texts = [self.texts.texts[at] for at in np.flatnonzero(is_used).tolist()]
        return RowPart(self.row_count, self.columns | columns, Texts(texts))


def _numbered(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The number of each value, in the order of their first places; these."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if high - low > max(len(values), _FEW_KEYS):
        _, first, values = np.unique(values, return_index=True, return_inverse=True)
    else:
        values, first = values - low, np.full(high - low + 1, -1)
        first[values[::-1]] = np.arange(len(values))[::-1]
    there = np.flatnonzero(first >= 0)
    order = there[np.argsort(first[there])]
    number = np.empty(len(first), dtype=np.int64)
    number[order] = np.arange(len(order))
    return number[values], first[order]


def packed(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(flags, bitorder="little")


def unpacked(bits: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(bits, count=count, bitorder="little").view(bool)


class ArrowRows:
    """Rows that `connection.register` takes; a column that a part lacks is NULL.

    Arrow's formats of columns: `l` int64, `L` uint64, `g` float64, `b` bits, `u` texts, or `json`: texts that
    are known to be JSON. `parts` gives the rows each time they are read.
    """

    def __init__(self, formats: Mapping[str, str], parts: Callable[[], Iterable[RowPart]]) -> None:
        self._formats, self._parts = formats, parts
        self._error = ctypes.create_string_buffer(_LONGEST_ERROR + 1)
        self._kept: list[Any] = []  # of schemas: what the engine holds addresses of

    def __arrow_c_schema__(self) -> object:
        schema = _Schema()
        self._fill_schema(schema)
        self._kept.append(schema)
        return _new_capsule(ctypes.addressof(schema), b"arrow_schema", None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        del requested_schema
        # Threads of the engine read several parts at once.
        parts = (part for part in self._parts() if part.row_count)

        def guarded(fill: Callable[[Any], None]) -> Callable[[Any, Any], int]:
            def call(_: Any, out: Any) -> int:
                try:
                    fill(out.contents)
                except BaseException as error:  # noqa: BLE001 - ctypes would drop it: also a signal's
                    self._error.value = f"{type(error).__name__}: {error}".encode()[:_LONGEST_ERROR]
                    return errno.EIO
                return 0

            return call

        def get_next(array: Any) -> None:
            part = next(parts, None)
            if part is None:
                array.release = None
                return
            kept: list[Any] = [part]
            children = [self._column(part, name, kept) for name in self._formats]
            _fill_array(array, part.row_count, [None], kept, children=children)
            array.private = next(_numbers)
            _open_batches[array.private] = kept

        stream = _Stream(
            _GET_SCHEMA(guarded(self._fill_schema)),
            _GET_NEXT(guarded(get_next)),
            _GET_ERROR(lambda _: ctypes.addressof(self._error)),
            _END_STREAM,
        )
        stream.private = ctypes.addressof(stream)
        _open_streams[stream.private] = stream
        return _new_capsule(ctypes.addressof(stream), b"arrow_array_stream", None)

    def _fill_schema(self, schema: _Schema) -> None:
        release = ctypes.cast(_FORGET_SCHEMA, c_void_p)
        children = []
        for name, form in self._formats.items():
            child = _Schema(format=form.encode(), name=name.encode(), flags=_NULLABLE, release=release)
            if form in _TEXT_FORMATS:
                child.format = b"i"
                texts = _Schema(format=b"u", name=b"", release=release)
                texts.metadata = ctypes.addressof(_IS_JSON) if form == "json" else None
                child.dictionary = _pointers([texts], _Schema, self._kept)[0]
            children.append(child)
        schema.format, schema.name, schema.release = b"+s", b"", release
        schema.child_count, schema.children = len(children), _pointers(children, _Schema, self._kept)

    def _column(self, part: RowPart, name: str, kept: list[Any]) -> _Array:
        nothing = np.zeros(part.row_count, dtype=np.int64)  # without a bit that is set, too
        kept.append(column := part.columns.get(name, (nothing, nothing.view(np.uint8))))
        values, present = column
        array, null_count = _Array(), part.row_count - int(np.count_nonzero(part.has(name)))
        buffers = [present.ctypes.data if null_count else None, values.ctypes.data]
        _fill_array(array, part.row_count, buffers, kept, null_count=null_count)
        if self._formats[name] in _TEXT_FORMATS:
            texts = _Array()
            data, ends = part.texts.encoded
            _fill_array(texts, len(ends) - 1, [None, ends.ctypes.data, data.ctypes.data], kept)
            array.dictionary = _pointers([texts], _Array, kept)[0]
        return array


def _pointers(structs: Sequence[Any], of: Any, kept: list[Any]) -> Any:
    pointers = (POINTER(of) * len(structs))(*map(ctypes.pointer, structs))
    kept += [structs, pointers]
    return pointers


def _fill_array(
    array: _Array, length: int, buffers: list[int | None], kept: list[Any],
    *, null_count: int = 0, children: Sequence[_Array] = (),
) -> None:  # fmt: skip
    array.length, array.null_count, array.offset = length, null_count, 0
    array.buffer_count, array.buffers = len(buffers), (c_void_p * len(buffers))(*buffers)
    array.child_count, array.children = len(children), _pointers(children, _Array, kept)
    array.release = ctypes.cast(_END_BATCH if children else _FORGET_ARRAY, c_void_p)
    kept.append(array.buffers)
