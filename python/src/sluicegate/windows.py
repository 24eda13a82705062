"""Where real windows of I/O nodes differ from simulated ones, and what of that misleads the network."""

from __future__ import annotations

import numpy as np

from sluicegate.council import CLASSES, Data, Network

# Inputs that tell of the same.
GROUPS = {
    "sizes": ("size_mean_stripes_log2", "size_max_stripes_log2", "whole_stripes", "burst_stripes_log2"),
    "distances": (
        "distance_log2", "distances_none", "distances_near_forward", "distances_near_backward",
        "distances_middle", "distances_far", "contiguous", "forward", "reach_log2", "extent_log2",
        "stride_share",
    ),
    "stripes": ("stripe_span_us_log2", "stripe_span_gaps_log2", "boundary_gap_log2", "burst_aligned"),
    "streams": (
        "continued", "streams_log2", "streams_per_request", "fresh_bursts", "preceding", "preceding_answered",
        "between",
    ),
    "counts": (
        "app_files_log2", "files_per_server_log2", "distinct_files_log2", "requests_log2", "servers_log2",
        "requests_per_file_log2",
    ),
    "times": ("answered", "depth_log2", "stream_gap_spread", "think_spread"),
}  # fmt: skip


def medians(data: Data) -> np.ndarray:
    """Return the median of each input (columns) for each class."""
    return np.stack([np.median(data.inputs[data.label == label], axis=0) for label in range(len(CLASSES))])


def right(network: Network, data: Data, usual: np.ndarray, replaced: tuple[str, ...] = ()) -> np.ndarray:
    """Return for each class the share of windows that are recognised, then that of all.

    The inputs named by `replaced` are set to what is usual for the window's class.
    """
    inputs = data.inputs.copy()
    for name in replaced:
        at = data.names.index(name)
        inputs[:, at] = usual[data.label, at]
    found = network.shares(inputs).argmax(axis=1) == data.label
    of_class = [found[data.label == label].mean() for label in range(len(CLASSES))]
    return np.array([*of_class, found.mean()])


def compare(network: Network, real: Data, simulated: Data) -> list[str]:
    """Return a report: medians by class, and what the network would say if inputs were as simulated.

    Raises ValueError if the data sets have other inputs than the network, or lack a pattern.
    """
    for data in (real, simulated):
        if data.names != network.names:
            raise ValueError("data sets with other inputs than the network's: another version made them")
        if set(data.label.tolist()) != set(range(len(CLASSES))):
            raise ValueError("each data set needs windows of all patterns")
    usual, seen = medians(simulated), medians(real)
    lines = [
        f"medians of {len(simulated)} simulated and {len(real)} real windows: {', '.join(CLASSES)};",
        "beyond: real windows outside of what was trained with; recognised: those that would be if this",
        "input were as simulated",
        "",
        f"{'input':<26}{'simulated':>24}{'real':>24}{'beyond':>8}{'recognised':>12}",
    ]
    for at, name in enumerate(real.names):
        least, most = network.ranges[at]
        beyond = ((real.inputs[:, at] < least) | (real.inputs[:, at] > most)).mean()
        columns = ["".join(f"{value:8.2f}" for value in rows[:, at]) for rows in (usual, seen)]
        share = right(network, real, usual, (name,))[-1]
        lines.append(f"{name:<26}{columns[0]}{columns[1]}{beyond:8.0%}{share:12.1%}")
    lines += [
        "",
        f"{'if these were as simulated':<28}" + "".join(f"{name:>19}" for name in (*CLASSES, "all")),
    ]
    for name, replaced in {"none": (), **GROUPS}.items():
        shares = right(network, real, usual, replaced)
        lines.append(f"{name:<28}" + "".join(f"{share:19.1%}" for share in shares))
    return lines
