"""The errors that refattn raises: each shows the offending values and says what to do."""

from __future__ import annotations


class RefattnError(Exception):
    """Base of every error that refattn raises on purpose."""


class ShapeError(RefattnError, ValueError):
    """Shapes that do not fit together; the message prints all of them."""


class DtypeError(RefattnError, TypeError):
    """A dtype that an input may not have, or two that may not meet."""


class LibraryError(RefattnError, TypeError):
    """Something that is no array, or arrays of two libraries in one call."""


class OptionError(RefattnError, ValueError):
    """A configuration that means nothing, or means two things."""


class BackendUnavailable(RefattnError, RuntimeError):
    """An array library or a device that is not there; the message says what to install."""


class UsageError(RefattnError, ValueError):
    """A command or a call of the kit that can't be carried out as it was asked for."""


class Undecided(RefattnError, ArithmeticError):
    """A comparison, or a rounding to float64, that certified enclosures leave open; more bits may settle it."""
