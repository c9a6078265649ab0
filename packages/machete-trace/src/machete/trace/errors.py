"""What can be wrong with a trace: what, where, why, and what would work."""

from machete.megakernel import MacheteError


class NotTracedError(MacheteError):
    """A kernel has no trace to show."""


class TraceFileError(MacheteError):
    """A file is no trace."""


class OutputError(MacheteError):
    """A result cannot be written."""
