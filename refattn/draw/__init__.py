"""Pictures of schemes and patterns: who sees whom, in the terminal and as a file."""

from refattn.draw.panels import Panel, panels, sees
from refattn.draw.picture import save
from refattn.draw.text import as_text

__all__ = ["Panel", "as_text", "panels", "save", "sees"]
