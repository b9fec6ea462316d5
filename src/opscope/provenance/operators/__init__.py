"""Native functions of PyTorch: yaml entries, overloads, what the dispatcher calls for them, backward nodes.

All facts come from the yaml files of PyTorch releases; `tools/torch_tables` reads them.
"""

from opscope.provenance.operators.dispatch import (
    DERIVATIVES_FILE,
    NATIVE_FUNCTIONS_FILE,
    Dispatch,
    dispatch,
)
from opscope.provenance.operators.overloads import InputRecord, Resolved, input_record, resolve
from opscope.provenance.operators.schema import NativeFunction
from opscope.provenance.operators.table import (
    TABLE_FILE,
    OperatorTable,
    decode_table,
    encode_table,
    packaged_table,
    packaged_versions,
    table_for,
)

__all__ = [
    "DERIVATIVES_FILE",
    "NATIVE_FUNCTIONS_FILE",
    "TABLE_FILE",
    "Dispatch",
    "InputRecord",
    "NativeFunction",
    "OperatorTable",
    "Resolved",
    "decode_table",
    "dispatch",
    "encode_table",
    "input_record",
    "packaged_table",
    "packaged_versions",
    "resolve",
    "table_for",
]
