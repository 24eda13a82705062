"""Traces of Sluicegate, a scheduler for file I/O requests."""

from sluicegate.trace import READ, WRITE, Trace, TraceError, read, write

__all__ = ["READ", "WRITE", "Trace", "TraceError", "read", "write"]
__version__ = "0.1.0"
