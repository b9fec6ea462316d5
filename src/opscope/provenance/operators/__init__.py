"""Native functions of PyTorch: yaml entries, overloads, what the dispatcher calls for them, backward nodes.

All facts come from the yaml files that every PyTorch ships. Neither torch nor torchgen is ever imported.
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
    build_operator_table,
    decode_table,
    encode_table,
    installed_table,
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
    "build_operator_table",
    "decode_table",
    "dispatch",
    "encode_table",
    "input_record",
    "installed_table",
    "packaged_table",
    "packaged_versions",
    "resolve",
    "table_for",
]
