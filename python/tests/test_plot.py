"""Figures: what is in the results is in them, and wrong input is told."""

import json
import sys

import pytest

from sluicegate import compare, plot
from sluicegate.__main__ import main

pytest.importorskip("matplotlib")


def bench(tmp_path):
    cells = [
        {
            "policy": policy,
            "pattern": pattern,
            "op": op,
            "jitter": jitter,
            "predicted_from": "same program",
            "makespan_ratio": 0.8 + jitter / 100,
            "makespan_ratio_range": [0.7, 1.1],
            "aggregation_ratio": 1.5,
        }
        for policy in ("to-agg", "hbrr")
        for pattern in ("strided", "contiguous")
        for op in ("read", "write")
        for jitter in ((5, 0, 50) if pattern == "strided" else (5,))
    ]
    report = {"emulated": True, "model": "hdd-7200", "processes": 64, "repetitions": 3, "cells": cells}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(report))
    return path


def runs(tmp_path):
    lines = ["scenario,pattern,op,policy,jitter,predicting,seed_number,scale,makespan_s,aggregation"]
    for seed in range(3):
        for jitter in ("0 %", "50 %"):
            lines.append(f"x,strided,read,aioli,{jitter},no,{seed},1,2.0,4.0")
            lines.append(f"x,strided,read,aioli,{jitter},yes,{seed},1,{1.0 + seed},6.0")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    return path


def test_results_of_the_benchmark(tmp_path):
    results = plot.read(bench(tmp_path))
    assert results.origin == "emulated hdd-7200, 64 processes, medians of 3"
    assert len(results.cells) == 16
    cell = results.cells[0]
    assert (cell.panel, cell.jitter) == ("strided, read", 0.05)
    assert cell.change == pytest.approx(-0.15) and cell.low == pytest.approx(-0.3)


def test_what_was_measured_twice_is_one_cell(tmp_path):
    path = bench(tmp_path)
    report = json.loads(path.read_text())
    again = [cell | {"makespan_ratio": 1.0, "makespan_ratio_range": [0.9, 1.5]} for cell in report["cells"]]
    path.write_text(json.dumps(report | {"cells": report["cells"] + again}))
    cells = plot.read(path).cells
    assert len(cells) == 16
    assert (cells[0].low, cells[0].high) == (pytest.approx(-0.3), pytest.approx(0.5))
    assert cells[0].change == pytest.approx(-0.075)
    origin = plot.read(path).origin
    assert "measured 2 times, the median of which stands here: to-agg, strided, read, jitter 5%" in origin


def test_results_of_the_simulator(tmp_path):
    results = plot.read(runs(tmp_path))
    assert [(cell.policy, cell.jitter) for cell in results.cells] == [("aioli", 0.0), ("aioli", 0.5)]
    cell = results.cells[1]
    assert (cell.change, cell.low, cell.high, cell.aggregation) == (0.0, -0.5, 0.5, 0.5)
    paired = runs(tmp_path).read_text().replace("policy", "scheduler").replace("predicting", "other")
    path = tmp_path / "paired.csv"
    paired = paired.replace("aioli,0 %,yes", '"aioli, predicting",0 %,no')
    path.write_text(paired)
    assert [cell.change for cell in plot.read(path).cells] == [0.0]


def sweep(tmp_path, rows):
    lines = ["scenario,policy,servers,start,predicting,seed_number,scale,makespan_s,aggregation"]
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join([*lines, *rows]))
    return path


def test_every_axis_that_varies_is_shown(tmp_path, capsys):
    """Cases that differ in an axis of their own stay apart: one loses a fifth, the others win."""
    rows = [
        f"x,{policy},{servers},together,{predicting},{seed},1,{1 if predicting == 'no' else makespan},4.0"
        for policy in ("hbrr", "to-agg")
        for servers, makespan in (("4", 0.9), ("8", 1.2), ("16", 0.5))
        for predicting in ("no", "yes")
        for seed in range(2)
    ]
    path = sweep(tmp_path, rows)
    assert len(plot.read(path).cells) == 6
    assert main(["compare", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("simulated, medians of 2 seeds")
    assert [line.split()[:3] for line in lines[3:]] == [
        ["servers", "4", "-10%"],
        ["servers", "8", "+20%"],
        ["servers", "16", "-50%"],
    ]
    assert "together" not in "".join(lines), "what is the same everywhere says nothing"


def test_a_jitter_that_is_no_share_is_an_axis_like_others(tmp_path):
    path = runs(tmp_path)
    path.write_text(path.read_text().replace("0 %", "0us"))
    cells = plot.read(path).cells
    assert [cell.pattern for cell in cells] == ["strided, jitter 0us", "strided, jitter 50us"]


def test_runs_that_nothing_tells_apart_are_refused(tmp_path):
    rows = ["x,hbrr,4,together,no,0,1,1.0,4.0"] * 2
    with pytest.raises(ValueError, match="line 3: the same situation and seed"):
        plot.read(sweep(tmp_path, rows))


@pytest.mark.parametrize("kind", ["table", "jitter"])
@pytest.mark.parametrize("make", [bench, runs])
def test_figures_are_the_same_each_time(tmp_path, kind, make, capsys):
    source = make(tmp_path)
    outs = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for out in outs:
        assert main(["plot", kind, str(source), str(out)]) == 0
    text = outs[0].read_text()
    assert text == outs[1].read_text()
    assert "<svg" in text and ("emulated" in text or "simulated" in text)
    assert "strided, read" in text
    assert str(outs[0]) in capsys.readouterr().out


def test_mistakes_are_told(tmp_path, capsys):
    source = bench(tmp_path)
    empty = tmp_path / "empty.csv"
    empty.write_text("scenario,policy,seed_number,makespan_s,aggregation\n")
    other = tmp_path / "other.json"
    other.write_text('{"cells": [{"policy": 1}]}')
    for arguments, says in [
        (["table", str(empty), "x.svg"], "nothing that was run both with and without"),
        (["table", str(other), "x.svg"], "neither the output"),
        (["table", str(tmp_path / "none"), "x.svg"], "No such file"),
        (["table", str(source), "x.svg", "--predicted-from", "tea"], "there is: same program"),
        (["table", str(source), "x.svg", "--jitter", "7"], "jitter of 7%"),
        (["jitter", str(source), str(tmp_path / "x.nonsense")], "nonsense"),
    ]:
        assert main(["plot", *arguments]) == 1
        assert says in capsys.readouterr().err


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path, capsys, monkeypatch):
    source = bench(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "table", str(source), str(tmp_path / "x.svg")]) == 1
    assert "in Sluicegate's sources: pip install './python[plot]'" in capsys.readouterr().err


def test_a_table_has_a_line_for_each_situation(tmp_path, capsys):
    assert main(["compare", str(runs(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("simulated, medians of")
    assert lines[2].split() == ["aioli"]
    assert [line.split()[-2:] for line in lines[3:]][1] == ["0%", "+50%"]


def test_no_change_has_no_sign():
    for change, shown in [(0.004, ["0%", "0%"]), (-0.006, ["-1%", "+1%"])]:
        cell = plot.Cell("hbrr", "strided", "read", 0.05, plot.SAME, change, -0.1, 0.1, -change)
        assert compare.table(plot.Results("made up", [cell])).split()[-2:] == shown


def boxes(figure):
    """Where legends and titles are, and where data is, in pixels."""
    figure.draw_without_rendering()
    legends = [legend.get_window_extent() for legend in figure.legends]
    words = [text.get_window_extent() for text in (figure._suptitle, figure._supxlabel)]
    return legends, words, [place.get_tightbbox() for place in figure.axes if place.get_visible()]


@pytest.mark.parametrize("make", [bench, runs])
@pytest.mark.parametrize("draw", [plot.table, plot.over_jitter])
def test_all_of_a_figure_can_be_read(tmp_path, make, draw):
    figure = draw(plot.read(make(tmp_path)))
    legends, words, panels = boxes(figure)
    assert len(legends) == 1 and all(panel.width > 100 and panel.height > 50 for panel in panels)
    for at, box in enumerate([*legends, *words]):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in [*panels, *[*legends, *words][:at]])


@pytest.mark.parametrize(("draw", "what"), [(plot.table, "lines"), (plot.over_jitter, "bands")])
def test_what_axes_and_ranges_are_is_said(tmp_path, draw, what):
    figure = draw(plot.read(bench(tmp_path)))
    said = " ".join(figure._supxlabel.get_text().split())
    assert f"{what}: from the least to the largest of all runs; grey: up to 2% more" in said
    labels = {" ".join(place.get_ylabel().split()) for place in figure.axes} - {""}
    changes = {"change of the makespan", "change of the requests in a batch"}
    assert labels == changes if what == "bands" else said.startswith("change of the makespan by prediction")
    assert all(place.xaxis.get_major_formatter()(0.1).endswith("%") for place in figure.axes)


def test_better_and_worse_and_neither_are_told_apart_without_red_and_green():
    from matplotlib.colors import to_rgb

    changes = {"less": -0.1, "the same": 0.004, "more": 0.1}
    cells = [
        plot.Cell(name, "strided", "read", 0.05, plot.SAME, change, change, change, 0.0)
        for name, change in changes.items()
    ]
    figure = plot.table(plot.Results("made up", cells))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(changes)
    points = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", "", None)]
    assert len({line.get_marker() for line in points}) == 3
    less, same, more = (to_rgb(line.get_color()) for line in points)
    assert len(set(same)) == 1, "grey"
    # Who sees no difference between red and green sees the blue.
    assert less[2] - less[0] > 0.4 and more[0] - more[2] > 0.4
