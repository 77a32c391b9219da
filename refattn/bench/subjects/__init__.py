"""Everything that is timed, a file for each family of schemes."""

from __future__ import annotations

from refattn.bench.subject import Subject
from refattn.bench.subjects import dense, linear, linformer, linformer_layer, lsh, sparse

FAMILIES = (dense, sparse, linear, linformer, linformer_layer, lsh)
SUBJECTS: dict[str, Subject] = {subject.name: subject for family in FAMILIES for subject in family.SUBJECTS}
"""By name."""
HELD = tuple(name for name, subject in SUBJECTS.items() if subject.targets)
"""Those that have bounds to keep: what is timed if nobody names anything."""
