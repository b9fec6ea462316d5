"""Columns in memory as rows that the engine reads in place, by Arrow's C data and stream interfaces.

Source: https://arrow.apache.org/docs/format/CDataInterface.html and …/CDataInterface/PyCapsuleInterface.html.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Rows of a batch: several threads of the engine read batches side by side, each with all of its texts.
_BATCH_ROWS = 1 << 17
_NULLABLE = 2
_LONGEST_ERROR = 400


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", c_char_p), ("name", c_char_p), ("metadata", c_char_p), ("flags", c_int64),
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
# Streams that the engine has not released: each holds its rows. Rows that held their streams in turn would be
# freed by the garbage collector alone, with hundreds of megabytes.
_open_streams: dict[int, _Stream] = {}


def _end_stream(stream: Any) -> None:
    stream.contents.release = _RELEASE_STREAM(0)
    _open_streams.pop(stream.contents.private, None)


_END_STREAM = _RELEASE_STREAM(_end_stream)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]


class Texts(NamedTuple):
    """Texts in UTF-8, one behind the other: `int32[n + 1]` of where each begins, and the last ends."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int32]


Column = tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]  # values, and a bit per row: is there one


class RowPart(NamedTuple):
    """Some rows: their columns, and the texts that columns of texts are int32 indices of."""

    row_count: int
    columns: dict[str, Column]
    texts: Texts


class ArrowRows:
    """Rows that `connection.register` takes.

    Args:
        formats: Arrow's format of each column: `l` int64, `L` uint64, `g` float64, `b` bits, `u` texts.
        parts: The rows. A column that a part lacks is NULL there.
    """

    def __init__(self, formats: dict[str, str], parts: Sequence[RowPart]) -> None:
        self._formats, self._parts = formats, parts
        most = max((part.row_count for part in parts), default=0)
        self._nothing = np.zeros(most, dtype=np.int64), np.zeros(most // 8 + 1, dtype=np.uint8)
        self._error = ctypes.create_string_buffer(_LONGEST_ERROR + 1)
        self._kept: list[Any] = []  # what the engine holds addresses of

    def __arrow_c_schema__(self) -> object:
        """Capsule of the schema."""
        schema = _Schema()
        self._fill_schema(schema)
        self._kept.append(schema)
        return _new_capsule(ctypes.addressof(schema), b"arrow_schema", None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Capsule of a stream of all rows."""
        del requested_schema
        batches = ((part, first) for part in self._parts for first in range(0, part.row_count, _BATCH_ROWS))

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
            found = next(batches, None)
            if found is None:
                array.release = None
                return
            part, first = found
            count = min(_BATCH_ROWS, part.row_count - first)
            children = [self._column(part, name, first, count) for name in self._formats]
            self._fill_array(array, count, [None], children=children)

        stream = _Stream(
            _GET_SCHEMA(guarded(self._fill_schema)),
            _GET_NEXT(guarded(get_next)),
            _GET_ERROR(lambda _: ctypes.addressof(self._error)),
            _END_STREAM,
        )
        stream.private = ctypes.addressof(stream)
        _open_streams[stream.private] = stream
        return _new_capsule(ctypes.addressof(stream), b"arrow_array_stream", None)

    def _pointers(self, structs: Sequence[Any], of: Any) -> Any:
        pointers = (POINTER(of) * len(structs))(*map(ctypes.pointer, structs))
        self._kept += [structs, pointers]
        return pointers

    def _fill_schema(self, schema: _Schema) -> None:
        release = ctypes.cast(_FORGET_SCHEMA, c_void_p)
        children = []
        for name, form in self._formats.items():
            child = _Schema(format=form.encode(), name=name.encode(), flags=_NULLABLE, release=release)
            if form == "u":
                child.format = b"i"
                texts = _Schema(format=b"u", name=b"", release=release)
                child.dictionary = self._pointers([texts], _Schema)[0]
            children.append(child)
        schema.format, schema.name, schema.release = b"+s", b"", release
        schema.child_count, schema.children = len(children), self._pointers(children, _Schema)

    def _column(self, part: RowPart, name: str, first: int, count: int) -> _Array:
        values, present = part.columns.get(name, self._nothing)
        bits = np.unpackbits(present[first // 8 : (first + count + 7) // 8], bitorder="little")
        null_count = count - int(np.count_nonzero(bits[:count]))
        array = _Array()
        buffers = [present.ctypes.data if null_count else None, values.ctypes.data]
        self._fill_array(array, count, buffers, offset=first, null_count=null_count)
        if self._formats[name] == "u":
            texts = _Array()
            data, ends = part.texts
            self._fill_array(texts, len(ends) - 1, [None, ends.ctypes.data, data.ctypes.data])
            array.dictionary = self._pointers([texts], _Array)[0]
        return array

    def _fill_array(
        self, array: _Array, length: int, buffers: list[int | None],
        *, offset: int = 0, null_count: int = 0, children: Sequence[_Array] = (),
    ) -> None:  # fmt: skip
        array.length, array.null_count, array.offset = length, null_count, offset
        array.buffer_count, array.buffers = len(buffers), (c_void_p * len(buffers))(*buffers)
        array.child_count, array.children = len(children), self._pointers(children, _Array)
        array.release = ctypes.cast(_FORGET_ARRAY, c_void_p)
        self._kept.append(array.buffers)
