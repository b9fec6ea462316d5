"""`scripts/audit.py`: a vulnerability fails, what cannot be asked is said."""

import json
import os
import subprocess
import sys
from pathlib import Path

from case_tables import cases

AUDIT = Path(__file__).parents[2] / "scripts/audit.py"
ANSWER = """
import sys
packages = sys.stdin.read()
assert "duckdb==" in packages and "opscope==" not in packages, packages
print({answer!r})
"""


def audit(folder, answer):
    """The script with a pip-audit that answers so."""
    (folder / "pip_audit").mkdir()
    (folder / "pip_audit/__init__.py").touch()
    (folder / "pip_audit/__main__.py").write_text(ANSWER.format(answer=answer))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, AUDIT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    return done.returncode, done.stdout + done.stderr


def answer(**fields):
    return json.dumps({"dependencies": [{"name": "duckdb", "version": "1.0", **fields}]})


@cases("said", "code", "words")
def test_what_is_said_and_what_fails(tmp_path, said, code, words):
    found = audit(tmp_path, said)
    assert found[0] == code, found
    assert words in found[1]
