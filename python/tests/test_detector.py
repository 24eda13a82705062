"""Training of the detector, with a bench that simulates nothing."""

import json
import zlib

import numpy as np
import pytest

from sluicegate import detector, forest

pytest.importorskip("sklearn")

INPUTS = ["size", "reach", "streams"]


def made_up(rows: int, seed: int = 1) -> str:
    """Return a data set whose patterns follow from its inputs."""
    random = np.random.default_rng(seed)
    known = (
        "seed,platform,mode,knows_answers,server,window_end_ns,is_file,app,op,requests,bytes,label,"
        "contiguous_small_bytes,contiguous_large_bytes,strided_small_bytes,strided_large_bytes,other_bytes"
    )
    lines = [f"{known},{','.join(INPUTS)},thesis_distance,thesis_stripe_span_us"]
    for row in range(rows):
        label = int(random.integers(-1, 4))
        size, reach, streams = random.normal([label % 2 * 4.0, label // 2 * 4.0, 0], 0.5).astype(np.float32)
        lead = f"{row // 20},{'ab'[row // 20 % 2]},single,1,0,{row},1,0,0,100,1000,{label},0,0,0,0,0"
        lines.append(f"{lead},{size},{reach},{streams},{reach},{random.normal():.4f}")
    return "\n".join(lines) + "\n"


class Fake(detector.Bench):
    """Evaluates models with NumPy."""

    def __init__(self) -> None:
        super().__init__("no-such-command")
        self.exports = 0

    def export(self, seeds, out):
        self.exports += 1
        out.write_text(made_up(seeds * 20))

    def votes(self, data, model):
        trees = json.loads(model.read_text())["trees"]
        return forest.votes(trees, detector.read(data).inputs)

    def thesis_votes(self, data, tree):
        return forest.votes(json.loads(tree.read_text())["trees"], detector.read(data).thesis)

    def judge(self, model, thesis, seeds):
        self.judged = [json.loads(path.read_text()) for path in (model, thesis)]
        score, none = {"right": 9, "of": 10}, {"right": 0, "of": 0}
        return {
            "scenarios": seeds, "windows": 10, "files": 10, "server_accuracy": 0.9, "file_accuracy": 0.9,
            "thesis_tree_accuracy": 0.5, "confusion": np.eye(4, dtype=int).tolist(),
            "lines": [{"what": "workload single", "server": score, "file": score, "thesis": none}],
        }  # fmt: skip


def test_training_writes_models_a_card_and_uses_what_was_simulated_again(tmp_path):
    bench, said = Fake(), []
    for _ in range(2):
        scores = detector.train(
            bench, tmp_path / "models", tmp_path / "work", seeds=60, trees=3, say=said.append
        )
    assert bench.exports == 1 and scores["file_accuracy"] == 0.9
    text = (tmp_path / "models" / "detector.json").read_text()
    model = json.loads(text)
    assert model["inputs"] == INPUTS and model["classes"] == detector.CLASSES and len(model["trees"]) == 3
    data = detector.read(tmp_path / "work" / "train-60-f1-s1-r120.csv")
    found = forest.votes(model["trees"], data.inputs).argmax(axis=1)
    assert (found == data.label).mean() > 0.97
    thesis = json.loads((tmp_path / "models" / "detector-thesis.json").read_text())
    assert thesis["inputs"] == ["distance", "stripe_span_us"] and bench.judged == [model, thesis]
    card = (tmp_path / "models" / "detector.md").read_text()
    assert "contiguous small" in card and "| workload single | 90.0% | 90.0% | - |" in card
    check = (tmp_path / "models" / "detector-check.csv").read_text().splitlines()
    assert len(check) == 201 and check[1].count(",") == len(INPUTS) + 3
    assert any("agree on all" in line for line in said)


def test_of_a_scenario_some_rows_are_kept(tmp_path):
    (tmp_path / "whole").write_text(
        "seed,x,label\n" + "".join(f"{seed},{x},{x % 6 - 1}\n" for seed in (1, 2) for x in range(seed * 6))
    )
    detector.thin(tmp_path / "whole", tmp_path / "some", 6, seed=1)
    lines = (tmp_path / "some").read_text().splitlines()
    assert lines[:6] == ["seed,x,label", *(f"1,{x},{x - 1}" for x in range(1, 6))] and len(lines) == 1 + 5 + 6
    places = [int(line.split(",")[1]) for line in lines[6:]]
    assert places == sorted(set(places)) and not {0, 6} & set(places), "in order, once, of known patterns"


def test_the_same_seed_gives_the_same_model(tmp_path):
    for name in "ab":
        detector.train(Fake(), tmp_path / name, tmp_path / "work", seeds=40, trees=2, say=lambda _: None)
    assert (tmp_path / "a" / "detector.json").read_text() == (tmp_path / "b" / "detector.json").read_text()


def test_the_checksum_is_of_all_other_lines(tmp_path):
    purpose = forest.Purpose("detector", 1, ["x"], ["a", "b"])
    leaf = {"input": [-1], "threshold": [0.0], "left": [0], "right": [0], "votes": [[0.5, 0.5]]}
    lines = forest.dumps(purpose, [leaf, leaf], {"seed": 1}).splitlines(keepends=True)
    assert lines[:2] == ["{\n", '"format": "sluice-forest 1",\n']
    assert lines[2] == f'"crc32": "{zlib.crc32("".join(lines[:2] + lines[3:]).encode()):08x}",\n'
    assert json.loads("".join(lines))["trees"] == [leaf, leaf]


def test_what_other_features_or_numbers_gave_is_simulated_anew(tmp_path, monkeypatch):
    bench = Fake()

    def train(seed):
        detector.train(
            bench, tmp_path / "m", tmp_path / "w", seeds=40, trees=2, seed=seed, say=lambda _: None
        )
        return bench.exports

    assert train(1) == 1 and train(2) == 2
    monkeypatch.setattr(detector, "FEATURES", 99)
    assert train(2) == 3
    monkeypatch.setattr(detector, "ROWS_MAX", 10)
    assert train(2) == 4


@pytest.mark.parametrize("whose", ["votes", "thesis_votes", "judge"])
@pytest.mark.parametrize("change", [lambda votes: np.roll(votes, 1, axis=1), lambda votes: votes * np.nan])
def test_a_difference_from_rust_is_an_error_and_models_stay(tmp_path, monkeypatch, whose, change):
    def wrong(self, *paths):
        if whose == "judge":
            raise ValueError("rows differ")
        return change(of(self, *paths))

    of = getattr(Fake, whose)
    monkeypatch.setattr(Fake, whose, wrong)
    out = tmp_path / "m"
    out.mkdir()
    (out / "detector.json").write_text("before")
    with pytest.raises(ValueError, match="rows differ"):
        detector.train(Fake(), out, tmp_path / "w", seeds=40, trees=2, say=lambda _: None)
    assert [path.name for path in out.iterdir()] == ["detector.json"]
    assert (out / "detector.json").read_text() == "before"


def test_what_is_no_data_set_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no column label, platform, seed"):
        detector.read(tmp_path / "x.csv")


def test_a_command_that_is_missing_is_told(tmp_path):
    with pytest.raises(OSError, match="no-such-command"):
        detector.Bench("no-such-command").export(1, tmp_path / "x")
