"""Which release of PyTorch made a trace, and with that the units of its kernels.

A label is believed; hit rates are computed all the same, as evidence. Without one, the release is the one
whose table knows (nearly) every kernel name that could be PyTorch's. Releases share most of their kernels, so
a short trace fits several: then, and where the release itself has no table, the answer is a neighbor, graded
as such, and the reason says from which release it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.model.evidence import Grade
from opscope.provenance.installation import TorchVersion, nearest_release, parse_version
from opscope.provenance.packaged import lazy_pattern
from opscope.provenance.releases.release_table import release, release_versions, text_hashes

# Releases five minor versions apart share half of a trace's kernel names.
_LOWEST_HIT_RATE = 0.6
# Kernels of the user's own extensions may look like PyTorch's; a few of them do not make it another release.
_SAME_RELEASE_HIT_RATE = 0.98
# Fewer names fit releases without a table as well.
_FEWEST_CANDIDATES = 10

_MAY_BE_TORCH = lazy_pattern(
    r"(?:void |bool )?(?:\(anonymous namespace\)::)?"
    r"(?:(?:at|at_cuda_detail|c10|c10d|cub|thrust|torch|pytorch_flash)::|fmha_cutlass[FB]_)"
    r"|_ZN?K?\d*(?:2at|14at_cuda_detail|3c10|4c10d|3cub|6thrust|5torch|13pytorch_flash)"
)


class Recognition(msgspec.Struct, frozen=True):
    version: str | None  # of the table to ask, or None
    grade: Grade  # `RELEASE_INDEX` if the trace was made by that release, else `NEIGHBOR_VERSION`
    # By version, the fraction (0 to 1) of the candidates its table knows; empty without candidates
    hit_rates: dict[str, float]
    candidate_count: int  # kernel names that could be of PyTorch's own libraries
    reason: str = ""  # how the version was found, or why not. One clause for people.
    compared: tuple[str, ...] = ()  # further versions that fit as well; an answer they contradict is none
    label: str | None = None  # the release by the trace's own word

    @property
    def release(self) -> str | None:
        """The release that the user has, as far as known; None if nothing answers for it."""
        return None if self.version is None else self.label or self.version


class _Evidence(msgspec.Struct, frozen=True):
    """Hits of every table on the candidates of one trace, versions from oldest to newest."""

    hit_counts: dict[str, int]
    candidate_count: int

    def rate(self, version: str) -> float:
        return self.hit_counts[version] / self.candidate_count if self.candidate_count else 0.0

    def of_cuda(self, major: int | None) -> _Evidence:
        """Without releases published for an older CUDA only; all of them if none remains."""
        if major is None:
            return self
        fitting = {
            version: hits for version, hits in self.hit_counts.items() if _cuda_major(version) >= major
        }
        return _Evidence(fitting or self.hit_counts, self.candidate_count)

    def found(
        self, version: str | None, grade: Grade, reason: str, compared: tuple[str, ...] = ()
    ) -> Recognition:
        rates = {known: self.rate(known) for known in self.hit_counts} if self.candidate_count else {}
        return Recognition(version, grade, rates, self.candidate_count, reason, compared)


def recognize(
    kernel_names: Iterable[str], *, torch_version: str | None = None, cuda_major: int | None = None
) -> Recognition:
    """The release that made a trace with these kernels.

    `torch_version` is what the trace or its sidecar says of itself. Releases published for an older CUDA than
    `cuda_major` only are out of the question, unless the label says otherwise.
    """
    evidence = _evidence(kernel_names)
    label = (torch_version or "").strip()
    if label in evidence.hit_counts:
        return _labeled(evidence, label, label)
    version = parse_version(label)
    if version is None:
        return _by_hit_rate(evidence.of_cuda(cuda_major))
    if version.is_official and version.name in evidence.hit_counts:
        return _labeled(evidence, version.name, label)
    return replace(_neighbor(evidence, version), label=version.name if version.is_official else label)


def _evidence(kernel_names: Iterable[str]) -> _Evidence:
    names = sorted(set(kernel_names))
    hashes = text_hashes(names)
    hits = {version: release(version).knows(hashes) for version in release_versions()}
    candidates = np.fromiter((bool(_MAY_BE_TORCH.match(name)) for name in names), np.bool_, len(names))
    for known in hits.values():
        candidates |= known
    return _Evidence(
        {version: int(np.count_nonzero(known)) for version, known in hits.items()},
        int(np.count_nonzero(candidates)),
    )


def _labeled(evidence: _Evidence, version: str, label: str) -> Recognition:
    if evidence.candidate_count >= _FEWEST_CANDIDATES and evidence.rate(version) < _LOWEST_HIT_RATE:
        reason = f"labeled {label}, but its kernels are not those of that release"
        return evidence.found(version, Grade.NEIGHBOR_VERSION, reason)
    return evidence.found(version, Grade.RELEASE_INDEX, f"labeled {label}")


def _neighbor(evidence: _Evidence, version: TorchVersion) -> Recognition:
    """The nearest release there is a table of; its counterpart on the other side may contradict."""
    known = [one for one in evidence.hit_counts if _release_of(one)[0] == version.release[0]]
    nearest = nearest_release(version.name, known)
    if nearest is None:
        # Whichever table fits, it is of another release than the label says.
        found = _by_hit_rate(evidence)
        if found.version is None:
            return found
        reason = f"from {found.version}, by its kernels; no near release is known"
        return replace(found, grade=Grade.NEIGHBOR_VERSION, reason=reason)
    if nearest == version.name:
        return evidence.found(nearest, Grade.NEIGHBOR_VERSION, f"from the release {nearest}")
    is_newer = _release_of(nearest) > version.release
    other = nearest_release(
        version.name, [one for one in known if (_release_of(one) > version.release) is not is_newer]
    )
    reason = f"from {nearest}, the nearest release that is known"
    return evidence.found(nearest, Grade.NEIGHBOR_VERSION, reason, () if other is None else (other,))


def _by_hit_rate(evidence: _Evidence) -> Recognition:
    count = evidence.candidate_count
    if not count:
        return evidence.found(None, Grade.NEIGHBOR_VERSION, "no kernel names that could be PyTorch's own")
    best = max(evidence.hit_counts.values(), default=0)
    tied = [version for version, hits in evidence.hit_counts.items() if hits == best]
    share = f"{best} of {count} kernel names"
    if not best:
        return evidence.found(None, Grade.NEIGHBOR_VERSION, f"no table knows one of {count} kernel names")
    if len(tied) > 1:
        reason = f"{', '.join(tied[:-1])} and {tied[-1]} know the same {share}; the oldest is taken"
        # More releases without a table lie before the oldest that fits than between those that do.
        return evidence.found(tied[0], Grade.NEIGHBOR_VERSION, reason, tuple(tied[1:]))
    if best >= _SAME_RELEASE_HIT_RATE * count and count >= _FEWEST_CANDIDATES:
        return evidence.found(tied[0], Grade.RELEASE_INDEX, f"{tied[0]} alone knows {share}")
    return evidence.found(tied[0], Grade.NEIGHBOR_VERSION, f"{tied[0]} knows {share}, more than any other")


def _release_of(label: str) -> tuple[int, int, int]:
    parsed = parse_version(label)
    return (0, 0, 0) if parsed is None else parsed.release


def _cuda_major(version: str) -> int:
    """That of the build a table was read from, the newest of its release; unknown counts as any."""
    cuda = release(version).cuda
    return int(cuda.partition(".")[0]) if cuda else sys.maxsize


def kernel_units(kernel_name: str, recognition: Recognition) -> tuple[tuple[str, ...], Grade]:
    """The units of a kernel of a recognized trace, none where no table supports an answer; and their grade.

    Units are paths in PyTorch's repository where known, else file names. They are known by the exact name;
    where the release's table does not have it, by its loose keys, which is as good as of a neighbor.
    """
    if recognition.version is None:
        return (), recognition.grade
    table = release(recognition.version)
    units, grade = table.units_of(kernel_name), recognition.grade
    if not units:
        units, grade = table.loose_units_of(kernel_name), Grade.NEIGHBOR_VERSION
    for version in recognition.compared:
        other = release(version)
        units = _agreed(units, other.units_of(kernel_name) or other.loose_units_of(kernel_name))
    return units, grade


def _agreed(units: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """What two releases agree on: the units, or the names of files that moved; empty on a contradiction."""
    if not units or not others or set(units) & set(others):
        return units
    return units_named if (units_named := _names(units)) and set(units_named) & set(_names(others)) else ()


def _names(units: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(unit.rpartition("/")[2] for unit in units))
