"""Training of the model that selectors ask, with a bench that simulates nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

from sluicegate import __main__, forest, selection

pytest.importorskip("sklearn")

INPUTS = ["read_share", "size_log2"]
THESIS = [
    "read_share", "files_log2", "file_mb_log2", "spatiality", "request_kib_log2", "ratio_log2",
    "memory_mb_log2",
]  # fmt: skip
ARMS = ["noop", "sjf", "sjf anticipation=on"]


def made_up(cases: int, seed: int = 1, platforms: str = "ab") -> str:
    """Return cases in which sjf is twice as fast with reads, and half as fast with writes."""
    random = np.random.default_rng(seed)
    head = {"format": selection.FORMAT, "features": 1, "inputs": INPUTS, "thesis_inputs": THESIS}
    head["set"] = "train"
    lines = [json.dumps(head)]
    for case in range(cases):
        reads = float(random.integers(0, 2))
        arms = {}
        for arm in ARMS:
            if case % 4 == 3 and "anticipation" in arm:
                continue
            mean = 1.0 if arm == "noop" else 2.0 ** (1 - 2 * reads)
            seconds = [mean * float(random.normal(1, 0.01)) for _ in range(4)]
            windows = [[reads, float(random.normal())] for _ in range(2)]
            arms[arm] = {"seconds": seconds, "windows": windows}
        best = ["sjf"] if reads else ["noop"]
        thesis = [reads, *map(float, random.normal(size=6))]
        platform = platforms[case // 2 % len(platforms)] if platforms else ""
        device = "flash" if case % 4 == 3 else "disk"
        one = {
            "case": case,
            "platform": platform,
            "device": device,
            "thesis": thesis,
            "best": best,
            "arms": arms,
            "cpu_s": 60,
        }
        lines.append(json.dumps(one))
    return "\n".join(lines) + "\n"


class Fake(selection.Bench):
    """Evaluates models with NumPy."""

    def __init__(self) -> None:
        super().__init__("no-such-command")
        self.exports = 0

    def export(self, held_out, cases, out):
        self.exports += 1
        if not out.exists():
            # The last cases of the larger set to judge by have a platform of their own.
            made = made_up(cases, seed=2 if held_out else 1)
            out.write_text(made.replace('"case": 39, "platform": "b"', '"case": 39, "platform": "c"'))

    def values(self, data, model):
        file = json.loads(model.read_text())
        inputs = selection.read(data).inputs
        mean = forest.votes(file["trees"], inputs)
        each = np.stack([forest.votes([tree], inputs) for tree in file["trees"]])
        return np.hstack([mean, mean - file["caution"] * each.std(axis=0)])

    def votes(self, data, model):
        file = json.loads(model.read_text())
        thesis = selection.read(data).thesis
        each = np.stack([forest.votes([tree], thesis) for tree in file["trees"]], axis=1)
        return each.reshape(-1, each.shape[2])

    def judge(self, models, data, cases):
        score = {
            "accuracy": 0.9, "mean_regret": 0.01, "mean_regret_interval": [0.0, 0.02],
            "mean_regret_all": 0.012, "worst_regret": 0.1,
            "above_bar": 0.1, "over_noop": 1.5, "vs_noop_worst": 0.0, "cases": 5,
        }  # fmt: skip
        platform = {
            "name": "a",
            **score,
            "known": score,
            "t3": None,
            "best_fixed": "sjf",
            "best_fixed_mean_regret": 0.2,
        }
        return {
            "cases": cases, "simulated_cpu_s": 60.0, "misses": ["ours: worst"], "platforms": [platform],
            "policies": [{"name": "ours", **score}],
        }  # fmt: skip


SMALL = selection.Settings(trees=3, leaves=8, caution=0.5)


def test_training_writes_models_for_all_and_without_each_platform(tmp_path):
    said = []
    scores = selection.train(
        Fake(), tmp_path / "models", tmp_path / "work", cases=60, held_out=20, settings=SMALL, say=said.append
    )
    assert scores["cases"] == 20 and any("agree on all" in line for line in said)
    model = json.loads((tmp_path / "models" / "selection.json").read_text())
    assert model["classes"] == ARMS and model["leaves"] == "numbers" and model["caution"] == 0.5
    assert len(model["ranges"]) == len(INPUTS) and len(model["trees"]) == 3
    values = forest.votes(model["trees"], np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert values[0].argmax() in (1, 2) and values[1].argmax() == 0
    assert values.min() >= -selection.LOSS_MAX and values.max() <= 0
    for platform in "ab":
        one = json.loads((tmp_path / "models" / "selection" / f"without-{platform}.json").read_text())
        assert one["trained"]["without"] == platform and one["trained"]["cases"] < 60
        trees = json.loads(
            (tmp_path / "models" / "selection" / f"without-{platform}-thesis.json").read_text()
        )
        assert len(trees["trees"]) == 5 and trees["inputs"] == THESIS
    card = (tmp_path / "models" / "selection.md").read_text()
    assert "**Missed**: ours: worst" in card and "| ours | 90.0% | 1.0% (1.2%) |" in card
    check = (tmp_path / "models" / "selection-check.csv").read_text().splitlines()
    assert len(check) > 100 and check[1].count(",") == len(INPUTS) + 2 * len(ARMS) - 1


def test_what_a_larger_run_left_makes_no_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(selection.time, "strftime", lambda _: "2000-01-01")
    for name, sizes in [("new", [(30, 20)]), ("used", [(60, 40), (30, 20)])]:
        for cases, held_out in sizes:
            out = tmp_path / f"{name}-{cases}"
            selection.train(
                Fake(), out, tmp_path / name, cases=cases, held_out=held_out, settings=SMALL,
                say=lambda _: None,
            )  # fmt: skip
    new, used = (
        {path.relative_to(tmp_path / name): path.read_text() for path in (tmp_path / name).rglob("*.*")}
        for name in ("new-30", "used-30")
    )
    assert new == used and len(new) == 7
    assert (tmp_path / "used-60" / "selection" / "without-c.json").exists()
    assert "| 30 simulated cases, " in new[Path("selection.md")]


def test_too_few_cases_to_judge_by_are_refused_before_anything_is_simulated(tmp_path):
    bench, work = Fake(), tmp_path / "w"
    with pytest.raises(ValueError, match=r"15 cases are too few to judge by.* 16 or more"):
        selection.train(bench, tmp_path, work, cases=30, held_out=15, settings=SMALL, say=lambda _: None)
    assert bench.exports == 0 and not work.exists()


def test_the_card_tells_cases_that_were_left_out(tmp_path):
    class Without(Fake):
        def export(self, held_out, cases, out):
            super().export(held_out, cases, out)
            out.write_text("".join(line for line in out.open() if '{"case": 29,' not in line))

    selection.train(
        Without(), tmp_path / "m", tmp_path / "w", cases=30, held_out=20, settings=SMALL, say=lambda _: None
    )
    card = (tmp_path / "m" / "selection.md").read_text()
    assert "| 29 simulated cases, " in card and "| cases 0 to 29, " in card


def test_trees_are_not_told_what_they_are_to_do_without(tmp_path):
    (tmp_path / "data").write_text(made_up(200))
    data = selection.read(tmp_path / "data")
    data.thesis[:, THESIS.index("memory_mb_log2")] = data.thesis[:, 0]
    data.thesis[:, 0] = 0
    exported, said = selection.fit_thesis(data, data.thesis, 1)
    for at, tree in enumerate(exported):
        assert np.array_equal(said[:, at], forest.votes([tree], data.thesis))
    trees = dict(zip(selection.LEFT_OUT, exported, strict=True))
    told = {name: {THESIS[at] for at in tree["input"] if at >= 0} for name, tree in trees.items()}
    assert told["T1"] == {"memory_mb_log2"}
    for name, left_out in selection.LEFT_OUT.items():
        assert not told[name] & set(left_out)


def test_a_site_trains_with_its_own_cases(tmp_path):
    (tmp_path / "own.jsonl").write_text(made_up(40, platforms=""))
    said = []
    lost = selection.train_with(tmp_path / "own.jsonl", Fake(), tmp_path / "out", SMALL, said.append)
    assert lost < 0.05 and any("by cross-validation" in line for line in said)
    assert json.loads((tmp_path / "out" / "selection.json").read_text())["trained"]["mean_regret"] == lost
    assert not (tmp_path / "out" / "selection").exists()


def test_what_is_no_data_is_refused(tmp_path):
    path = tmp_path / "x"
    for text, why in [
        ("", "no data"),
        ("{}\n", "of this version"),
        (made_up(0), "no cases"),
        (made_up(3).replace('"sjf": ', '"mlf": ', 1), "has no times of"),
        (made_up(3).replace('"windows": [[', '"windows": [[0, ', 1), "line 2: windows of noop are not of 2"),
        (made_up(0).replace("inputs", "outputs", 1), "line 1: .inputs. and"),
        (made_up(0).replace('"features": 1', '"features": "1"'), "line 1: .features."),
        (made_up(1) + '{"case": 0}\n', "line 3: a case needs .device."),
        (made_up(1) + '{"case": 0, "device": "disk"}\n', "line 3: a case needs .arms."),
        (made_up(1) + '{"case": 0, "device": "disk", "arms": {"noop": 5}}\n', "line 3: arm noop needs"),
        (made_up(1) + "5\n", "line 3: no case"),
        (made_up(1) + '{"case":\n', "line 3: Expecting"),
        (made_up(1).replace('"case": 0', '"case": "0"'), "line 2: no case"),
        (made_up(1).replace('"seconds": [', '"seconds": [NaN, ', 1), "line 2: the times of noop"),
        (made_up(1).replace('"thesis": [', '"thesis": [0, '), "line 2: .thesis. has to be 7"),
        (made_up(1).replace('"cpu_s": 60', '"cpu_s": {}'), "line 2: .best. has to be"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=f"^{path}: .*{why}"):
            selection.read(path)


@pytest.mark.parametrize("error", [1e-6, float("nan")])
@pytest.mark.parametrize("whose", ["values", "votes", "judge"])
def test_a_difference_from_rust_is_an_error_and_models_stay(tmp_path, monkeypatch, whose, error):
    def wrong(self, *args):
        if whose == "judge":
            raise ValueError("rows differ")
        return of(self, *args) + error

    of = getattr(Fake, whose)
    monkeypatch.setattr(Fake, whose, wrong)
    out = tmp_path / "out"
    out.mkdir()
    (out / "selection.json").write_text("before")
    (tmp_path / "own").write_text(made_up(40))
    with pytest.raises(ValueError, match="rows differ"):
        selection.train(
            Fake(), out, tmp_path / "work", cases=40, held_out=20, settings=SMALL, say=lambda _: None
        )
    if whose == "values":
        with pytest.raises(ValueError, match="rows differ"):
            selection.train_with(tmp_path / "own", Fake(), out, SMALL, lambda _: None)
    assert [path.name for path in out.iterdir()] == ["selection.json"]
    assert (out / "selection.json").read_text() == "before"


def test_trees_that_are_written_otherwise_than_they_were_fitted_are_an_error(tmp_path, monkeypatch):
    def swapped(tree):
        nodes = of(tree)
        return {**nodes, "left": nodes["right"], "right": nodes["left"]}

    of = forest.tree_of
    monkeypatch.setattr(forest, "tree_of", swapped)
    with pytest.raises(ValueError, match=r"thesis.json: \d+ rows differ"):
        selection.train(
            Fake(), tmp_path, tmp_path / "w", cases=40, held_out=20, settings=SMALL, say=lambda _: None
        )


def test_data_is_for_selections_only(capsys):
    assert __main__.main(["train", "detector", "--data", "x"]) == 1
    assert "--data is for selection" in capsys.readouterr().err
