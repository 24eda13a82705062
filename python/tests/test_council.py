"""Training of the council's networks, with a bench that simulates nothing."""

import json
import zlib

import numpy as np
import pytest

from sluicegate import council, windows

pytest.importorskip("sklearn")

INPUTS, PAPER = ["reach", "streams", "files"], ["files", "size", "distance"]


def made_up(experiments: int, seed: int = 1) -> str:
    """Return a data set whose patterns follow from its inputs; the paper's do not tell two of them apart."""
    random = np.random.default_rng(seed)
    known = "seed,label,op,io_nodes,processes,request,servers,device,scheduler,requests"
    lines = [f"{known},{','.join('paper_' + name for name in PAPER)},{','.join(INPUTS)}"]
    for row in range(experiments * 10):
        label = row // 10 % 3
        reach, streams = random.normal([label * 4.0, 0.0], 0.5)
        files = 64.0 if label == 0 else 1.0
        lead = f"{row // 10},{label},read,1,64,65536,4,disk,to,100"
        lines.append(f"{lead},{files},65536,{random.normal()},{reach},{streams},{files}")
    return "\n".join(lines) + "\n"


class Fake(council.Bench):
    """Evaluates networks with NumPy, from their files."""

    def __init__(self, error: float = 0.0) -> None:
        super().__init__("no-such-command")
        self.exports, self.error = [], error

    def export(self, which, experiments, out):
        self.exports.append(which)
        out.write_text(made_up(experiments))

    def shares(self, data, models):
        rows = council.read(data)
        said = [
            loaded(path).shares(inputs)
            for path, inputs in zip(models, (rows.inputs, rows.paper), strict=True)
        ]
        return np.hstack(said) + self.error

    def judge(self, which, models, experiments):
        one = {
            "op": "read", "experiments": experiments, "windows": 10, "mean": 0.9971, "min": 0.61, "below": 2,
            "confusion": [[9, 1, 0], [0, 8, 0], [0, 0, 7]],
            "worst": [{"right": 0.61, "windows": 10, "experiment": "seed 7"}],
        }  # fmt: skip
        return {"mean": 0.99, "min_experiment": 0.6, "met": False, "ours": [one], "paper": [one]}


def loaded(path) -> council.Network:
    text = path.read_text()
    head, stated, rest = text.split("\n", 2)[0], text.split("\n")[2], text.split("\n", 3)
    assert (head, rest[1]) == ("{", '"format": "sluice-net 1",')
    checksum = zlib.crc32(f"{head}\n{rest[1]}\n{rest[3]}".encode())
    assert stated == f'"crc32": "{checksum:08x}",'
    return council.load(path)


def test_training_writes_networks_a_card_and_uses_what_was_simulated_again(tmp_path):
    bench, said = Fake(), []
    for _ in range(2):
        council.train(
            bench, tmp_path / "m", tmp_path / "work", experiments=60, gluster=30, epochs=30, say=said.append
        )
    assert bench.exports == ["train", "gluster"] and any("agree on all 900 rows" in line for line in said)
    data = council.read(tmp_path / "work" / "council-train-60-f1.csv")
    ours, paper = loaded(tmp_path / "m" / "council.json"), loaded(tmp_path / "m" / "council-paper.json")
    assert (ours.names, paper.names) == (INPUTS, PAPER)
    assert [weights.shape for weights, _ in paper.layers] == [(3, 5), (5, 3)]
    assert (ours.shares(data.inputs).argmax(axis=1) == data.label).mean() > 0.97
    # The paper's sees files, and no more.
    right = paper.shares(data.paper).argmax(axis=1) == data.label
    assert right[data.label == 0].mean() > 0.97 and right.mean() < 0.9
    card = (tmp_path / "m" / "council.md").read_text()
    assert (
        "| unseen | ours | read | 600 | 10 | 99.71% | 61.0% | 2 |" in card
        and "| gluster-unseen | ours | read | 600 |" in card
        and "**missed**" in card
        and "seed 7" in card
    )
    check = (tmp_path / "m" / "council-check.csv").read_text().splitlines()
    assert len(check) == 201 and check[1].count(",") == len(PAPER) + len(INPUTS) + 5


def test_what_other_features_gave_is_simulated_anew(tmp_path, monkeypatch):
    bench = Fake()
    for version in (1, 99):
        monkeypatch.setattr(council, "FEATURES", version)
        council.train(
            bench, tmp_path / "m", tmp_path / "w", experiments=30, gluster=30, epochs=2, say=lambda _: None
        )
    assert bench.exports == ["train", "gluster"] * 2


@pytest.mark.parametrize("error", [1e-6, float("nan")])
def test_what_rust_says_otherwise_is_an_error_and_networks_stay(tmp_path, error):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "council.json").write_text("before")
    with pytest.raises(ValueError, match="rows differ"):
        council.train(
            Fake(error),
            tmp_path / "m",
            tmp_path / "w",
            experiments=60,
            gluster=30,
            epochs=2,
            say=lambda _: None,
        )
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["council.json"]
    assert (tmp_path / "m" / "council.json").read_text() == "before"


def test_the_same_seed_gives_the_same_networks(tmp_path):
    for name in "ab":
        council.train(
            Fake(), tmp_path / name, tmp_path / "w", experiments=30, gluster=30, epochs=2, say=lambda _: None
        )
    for model in ("council.json", "council-paper.json"):
        assert (tmp_path / "a" / model).read_text() == (tmp_path / "b" / model).read_text()


def test_real_windows_are_trained_with_beside_simulated_ones(tmp_path):
    real, said = tmp_path / "real.csv", []
    real.write_text(made_up(6, seed=2))
    council.train(
        Fake(),
        tmp_path / "m",
        tmp_path / "w",
        experiments=30,
        gluster=30,
        epochs=2,
        real=[real],
        say=said.append,
    )
    assert any("agree on all 660 rows" in line for line in said)
    assert json.loads((tmp_path / "m" / "council.json").read_text())["trained"]["real_windows"] == 60
    assert "and 60 real ones" in (tmp_path / "m" / "council.md").read_text()
    real.write_text(real.read_text().replace("reach", "range"))
    with pytest.raises(ValueError, match="other inputs"):
        council.train(
            Fake(), tmp_path / "m", tmp_path / "w", experiments=30, gluster=30, epochs=2, real=[real]
        )


def test_the_transformation_is_scikit_learns():
    from sklearn.preprocessing import PowerTransformer

    inputs = np.random.default_rng(1).lognormal(size=(200, 3)) * [1.0, -5.0, 100.0]
    transform = PowerTransformer().fit(inputs)
    network = council.fit(list("abc"), inputs, lambda scaled: [(scaled, scaled)])
    assert np.allclose(network.scaled(inputs), transform.transform(inputs), atol=1e-9)


def test_a_file_that_is_no_data_set_is_refused(tmp_path):
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no data set of the council"):
        council.read(tmp_path / "no.csv")


def test_what_misleads_a_network_is_found(tmp_path):
    # It goes by the first input alone.
    weights = np.zeros((3, 3))
    weights[0] = [-1.0, 0.0, 1.0]
    flat = np.tile([[-50.0, 50.0]], (3, 1)), np.ones(3), np.full(3, 4.0), np.ones(3)
    network = council.Network(INPUTS, *flat, [(weights, np.array([-2.0, 0.0, -2.0]))])
    sets = []
    for name, away in [("simulated", 0.0), ("real", 4.0)]:
        path = tmp_path / f"{name}.csv"
        path.write_text(made_up(30))
        sets.append(council.read(path))
        # Real ones reach further.
        sets[-1].inputs[:, 0] += away
    simulated, real = sets
    usual = windows.medians(simulated)
    assert windows.right(network, simulated, usual)[-1] > 0.97
    assert windows.right(network, real, usual)[-1] < 0.4
    assert windows.right(network, real, usual, ("reach",))[-1] == 1.0
    assert windows.right(network, real, usual, ("streams",))[-1] < 0.4
    network.names = INPUTS[::-1]
    with pytest.raises(ValueError, match="other inputs"):
        windows.compare(network, real, simulated)
