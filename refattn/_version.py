"""The version of refattn, in the one place that the package, its metadata and its reports read."""

__version__ = "0.1.0.dev0"
