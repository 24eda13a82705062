"""Files that are put in place together."""

from pathlib import Path

import pytest

from sluicegate.staged import staged


def test_all_files_are_put_in_place_and_cards_last(tmp_path, monkeypatch):
    placed, replace = [], Path.replace

    def noted(self, target):
        placed.append(target.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    out = tmp_path / "new" / "out"
    for text in ("first", "second"):
        with staged(out) as made:
            (made / "below").mkdir()
            for name in ("a.md", "b.json", "below/z.json"):
                (made / name).write_text(text)
        assert {path.read_text() for path in out.rglob("*.*")} == {text}
        assert not list(tmp_path.rglob(".*"))
    assert placed == ["b.json", "z.json", "a.md"] * 2


def test_what_fails_changes_nothing(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="bad"), staged(out) as made:
        (made / "a.json").write_text("new")
        raise ValueError("bad")
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_place_for_files(tmp_path):
    (tmp_path / "out").write_text("text")
    with pytest.raises(NotADirectoryError, match="out"), staged(tmp_path / "out"):
        pytest.fail("it is told before the work")
