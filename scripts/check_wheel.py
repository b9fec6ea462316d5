"""The wheel is the same, byte for byte, whoever builds it, and when: built twice, of trees of other age."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_FILES = ("pyproject.toml", "README.md", "LICENSE", "src", "scripts")


def digest(folder: Path, *, mtime: int, umask: int, zone: str) -> str:
    """Of the wheel of a copy of the tree with files of this age, built with this umask and time zone."""
    tree = folder / f"tree{umask:o}"
    tree.mkdir()
    for name in _FILES:
        source, target = _ROOT / name, tree / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    for file in tree.rglob("*"):
        os.utime(file, (mtime, mtime))
    environment = {**os.environ, "TZ": zone, "PYTHONHASHSEED": str(umask)}
    environment.pop("SOURCE_DATE_EPOCH", None)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tree / "dist")]
    before = os.umask(umask)
    try:
        subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    finally:
        os.umask(before)
    (wheel,) = (tree / "dist").iterdir()
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def main() -> int:
    if find_spec("hatchling") is None:
        print("wheel: not built: hatchling is not installed (it is in the group `dev`)")
        return 0
    with tempfile.TemporaryDirectory() as name:
        one = digest(Path(name), mtime=1_000_000_000, umask=0o022, zone="UTC")
        other = digest(Path(name), mtime=1_700_000_000, umask=0o077, zone="Asia/Shanghai")
    if one != other:
        print("wheel: two builds of the same tree differ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
