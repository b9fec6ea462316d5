"""Known vulnerabilities of what opscope depends on, by pip-audit.

A vulnerability fails. Where nobody can be asked (no network, an index that knows no advisories), the reason
is printed and nothing fails: that says something of the machine, not of the project.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

_TIMEOUT_S = 120


def dependencies() -> Iterator[str]:
    """What is installed of opscope's own dependencies, and of theirs, as `name==version`."""
    waiting, seen = ["opscope"], {"opscope"}
    while waiting:
        for requirement in requires(waiting.pop()) or ():
            name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
            if name in seen or "extra ==" in requirement:
                continue
            seen.add(name)
            try:
                yield f"{name}=={version(name)}"
            except PackageNotFoundError:  # of another platform or Python
                continue
            waiting.append(name)


def main() -> int:
    if find_spec("pip_audit") is None:
        print("audit: not done: pip-audit is not installed (it is in the group `dev`)")
        return 0
    asked = sorted(dependencies())
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off", "--timeout=10"]
    command += ["--no-deps", "--disable-pip", "--requirement=/dev/stdin"]
    try:
        done = subprocess.run(
            command, input="\n".join(asked), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        found = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        print(f"audit: not done: no answer within {_TIMEOUT_S} s")
        return 0
    except (ValueError, KeyError):
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        print(f"audit: not done: {reason}")
        return 0
    skipped = [one["name"] for one in found if "skip_reason" in one]
    vulnerable = [one for one in found if one.get("vulns")]
    for one in vulnerable:
        print(f"{one['name']} {one['version']}: {', '.join(vuln['id'] for vuln in one['vulns'])}")
    checked = len(found) - len(skipped)
    print(f"audit: {checked} of {len(asked)} packages were checked, {len(vulnerable)} vulnerable")
    if skipped:
        print(f"audit: the index of this machine knows no advisories of: {', '.join(skipped)}")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
