"""Plug-ins of refattn, one module for each backend. They are imported as `refattn.backends`.

`refattn.backend.load(name)` finds `<name>_backend` here at run time; nothing in refattn imports this package by
itself. A plug-in knows the lowest floor of refattn and one array library, and nothing else.
"""

if __name__ == "backends":
    raise ImportError("import refattn.backends, not backends: this folder is a part of the package refattn")
