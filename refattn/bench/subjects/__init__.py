"""Everything that is timed, a file for each family of schemes."""

from __future__ import annotations

from refattn.bench.subject import Subject
from refattn.bench.subjects import dense, linear, linformer, lsh, sparse

FAMILIES = (dense, sparse, linear, linformer, lsh)
SUBJECTS: dict[str, Subject] = {subject.name: subject for family in FAMILIES for subject in family.SUBJECTS}
"""By name."""
