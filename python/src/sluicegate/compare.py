"""What prediction brings, as a table of text."""

from __future__ import annotations

from sluicegate.plot import Results


def table(results: Results) -> str:
    """The change of the makespan, and of the requests in a batch, by situation and algorithm.

    Both are medians, in percent; a makespan below 0 is better, an aggregation above 0 larger.
    """
    policies = list(dict.fromkeys(cell.policy for cell in results.cells))
    situations = list(dict.fromkeys((cell.panel, cell.jitter, cell.predicted_from) for cell in results.cells))
    jitters = len({cell.jitter for cell in results.cells}) > 1
    sources = len({cell.predicted_from for cell in results.cells}) > 1
    cells = {(cell.panel, cell.jitter, cell.predicted_from, cell.policy): cell for cell in results.cells}
    names = {
        (panel, jitter, source): panel
        + (f", jitter {jitter:.0%}" if jitters else "")
        + (f", {source}" if sources else "")
        for panel, jitter, source in situations
    }
    width = max(map(len, names.values()))
    lines = [
        f"{results.origin}: change of the makespan, and of the requests in a batch, in percent",
        "",
        " " * width + "".join(f"{policy:>14}" for policy in policies),
    ]
    for situation, name in names.items():
        found = (cells.get((*situation, policy)) for policy in policies)
        values = (f"{_signed(cell.change)} {_signed(cell.aggregation):>6}" if cell else "" for cell in found)
        lines.append((name.ljust(width) + "".join(f"{value:>14}" for value in values)).rstrip())
    return "\n".join(lines)


def _signed(change: float) -> str:
    """Whole percent, with a sign where there is a change."""
    percent = round(100 * change)
    return f"{percent:+d}%" if percent else "0%"
