"""Native functions of PyTorch: yaml entries, overloads, what the dispatcher calls for them, backward nodes.

All facts come from the yaml files that every PyTorch ships. Neither torch nor torchgen is ever imported.
"""

from opscope.provenance.operators.chain import (
    DERIVATIVES_FILE,
    NATIVE_FUNCTIONS_FILE,
    ChainLink,
    dispatch_chain,
)
from opscope.provenance.operators.dispatch import Dispatch, DispatchKind, dispatch, shared_dispatch
from opscope.provenance.operators.lookup import (
    TABLE_FILE,
    installed_table,
    packaged_table,
    packaged_versions,
    table_for,
)
from opscope.provenance.operators.native_function import Derivative, NativeFunction
from opscope.provenance.operators.overloads import InputRecord, Resolved, input_record, resolve
from opscope.provenance.operators.table import (
    OperatorTable,
    build_operator_table,
    decode_table,
    encode_table,
)

__all__ = [
    "DERIVATIVES_FILE",
    "NATIVE_FUNCTIONS_FILE",
    "TABLE_FILE",
    "ChainLink",
    "Derivative",
    "Dispatch",
    "DispatchKind",
    "InputRecord",
    "NativeFunction",
    "OperatorTable",
    "Resolved",
    "build_operator_table",
    "decode_table",
    "dispatch",
    "dispatch_chain",
    "encode_table",
    "input_record",
    "installed_table",
    "packaged_table",
    "packaged_versions",
    "resolve",
    "shared_dispatch",
    "table_for",
]
