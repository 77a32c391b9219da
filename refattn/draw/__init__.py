"""Pictures of schemes: who sees whom, in the terminal and as a file."""

from refattn.draw.picture import save
from refattn.draw.text import as_text, sees

__all__ = ["as_text", "save", "sees"]
