"""The commands of `python -m sluicegate`."""

from __future__ import annotations

import argparse
import sys

from sluicegate.trace import TraceError, read, write


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sluicegate", description="Traces of Sluicegate.")
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("convert", help="write a trace as Parquet")
    convert.add_argument("trace")
    convert.add_argument("out")
    darshan = commands.add_parser("import-darshan", help="make a trace of a Darshan log with extended traces")
    darshan.add_argument("log")
    darshan.add_argument("out")
    darshan.add_argument("--module", choices=["DXT_POSIX", "DXT_MPIIO"], help="which layer's accesses")
    args = parser.parse_args(arguments)
    try:
        return _convert(args) if args.command == "convert" else _import(args)
    except ImportError as error:
        extra = "parquet" if args.command == "convert" else "darshan"
        print(f"sluicegate: {error}; pip install 'sluicegate[{extra}]'", file=sys.stderr)
    except (OSError, ValueError) as error:
        where = f"{args.trace}: " if isinstance(error, TraceError) else ""
        print(f"sluicegate: {where}{error}", file=sys.stderr)
    return 1


def _convert(args: argparse.Namespace) -> int:
    trace = read(args.trace)
    trace.to_parquet(args.out)
    print(f"{args.out}: {len(trace)} requests")
    return 0


def _import(args: argparse.Namespace) -> int:
    from sluicegate.dxt import read_log

    trace = read_log(args.log, args.module)
    write(args.out, trace)
    print(f"{args.out}: {len(trace)} requests to {len(trace.paths)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
