"""The demo: its parts, its table and its folder."""

import pytest

from jdml.report import Run
from jdml.runs.run_files import write_results
from jdml.studies.demo import COLUMNS, Demo, is_trained, load_parts, methods, table


def test_demo_does_not_train_on_test_images():
    data, scored = load_parts()
    assert set(data.labels.tolist()) == {0, 1}
    assert set(data.views["digit"].tolist()) == set(range(6))
    known = is_trained(scored)
    assert set(scored.labels[known].tolist()) == set(range(6))
    assert set(scored.labels[~known].tolist()) == {6, 7, 8, 9}
    trained = {image.tobytes() for image in data.images}
    assert not any(image.tobytes() in trained for image in scored.images)


def test_demo_compares_four_methods():
    """Its example in tests/cli/test_commands.py tests that it runs and writes its files."""
    assert list(methods()) == ["triplet", "triplet + EPS", "MS + EPS", "ProxyAnchor"]
    scores = [dict.fromkeys(COLUMNS, value) for value in (0.4, 0.5)]
    runs = [Run("a", {"method": "triplet"}, seed, of) for seed, of in enumerate(scores)]
    assert table(runs) == [["triplet", *["45.0 ± 7.1"] * 4]]


@pytest.mark.parametrize("other", ["run", "study"])
def test_demo_refuses_another_runs_folder(tmp_path, other):
    if other == "run":
        (tmp_path / "config.json").write_text('{"lr": 0.1}')
    else:
        write_results(tmp_path / "results.jsonl", {"EPS-0": {"job": {}, "metrics": {}}})
    before = [path.name for path in tmp_path.iterdir()]
    with pytest.raises(ValueError, match=r"^--out\b"):
        Demo(tmp_path, steps=1, seeds=1).execute()
    assert [path.name for path in tmp_path.iterdir()] == before
