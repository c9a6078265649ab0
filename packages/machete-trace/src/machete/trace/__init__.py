"""What a Machete kernel does while it runs, and where every microsecond of it went."""

from .errors import NotTracedError, OutputError, TraceFileError
from .report import Report
from .trace import Trace

__all__ = ["NotTracedError", "OutputError", "Report", "Trace", "TraceFileError"]
