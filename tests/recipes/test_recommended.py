"""The recipe to begin with."""

import numpy as np
import pytest

from jdml.recipes import Recipe, recommended

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("sizes", "rows", "batch", "miner", "small"),
    [
        ([60] * 50, 64, (16, 4), "none", "refuse"),
        ([99] * 50, 64, (16, 4), "none", "refuse"),
        ([100] * 50, 64, (4, 16), "easy_positive", "refuse"),
        ([640] * 27, 160, (4, 40), "easy_positive", "refuse"),
        ([640] * 27, 400, (10, 40), "easy_positive", "refuse"),
        ([30] * 16, 80, (16, 5), "none", "refuse"),
        ([500] * 2, 64, (2, 32), "easy_positive", "refuse"),
        ([500], 64, (1, 64), "easy_positive", "refuse"),
        ([3] * 90, 64, (21, 3), "none", "refuse"),
        ([400, 300, 200, 1, 1], 64, (4, 16), "easy_positive", "pad"),
        ([200, 150, 120, 130, 110, 2, 140, 120], 64, (4, 16), "easy_positive", "pad"),
        ([1000, 60, 60, 60, 60], 64, (5, 12), "none", "refuse"),
        ([300] * 9, 4, (4, 1), "easy_positive", "refuse"),
    ],
)
def test_what_is_recommended_goes_by_the_size_of_classes(
    sizes: list[int], rows: int, batch: tuple[int, int], miner: str, small: str
) -> None:
    made = recommended(np.repeat(np.arange(len(sizes)), sizes), rows=rows)
    assert (made.batch, made.miner, made.small_classes) == (batch, miner, small)


@pytest.mark.parametrize(
    ("begins", "rate", "head"),
    [
        ("small", 3e-3, "random"),
        ("untrained", 1e-3, "random"),
        ("pretrained", 1e-4, "principal"),
        ("frozen", 3e-4, "principal"),
    ],
)
def test_what_is_recommended_is_these_numbers(begins: str, rate: float, head: str) -> None:
    """Those of the study's runs: another number is another recipe, which they say nothing of."""
    made = recommended([0] * 9 + [1] * 9, begins=begins, steps=300)
    assert made == Recipe(
        loss="circle",
        settings={"margin": 0.1, "gamma": 100.0},
        batch=(2, 9),
        small_classes="refuse",
        steps=300,
        rate=rate,
        rate_warmup=15,
        schedule="cosine",
        head=head,  # type: ignore[arg-type]  # one of its words
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"begins": "big"}, ValueError, "begins must be one of .*, got 'big'"),
        ({"steps": -1}, ValueError, "steps must be >= 0, got -1"),
        ({"steps": "9"}, TypeError, "steps must be an integer, got a str"),
        ({"rows": 3}, ValueError, "rows must be >= 4, got 3"),
        ({"rows": 64.0}, TypeError, "rows must be an integer, got a float"),
        ({"labels": []}, ValueError, r"labels must have shape \[N\].*, got \[0\]"),
        (
            {"labels": np.ones((4, 2), int)},
            ValueError,
            r"labels must have shape \[N\].*, got \[4, 2\]",
        ),
        ({"labels": 3}, ValueError, r"labels must have shape \[N\].*, got \[\]"),
    ],
)
def test_what_nothing_is_recommended_for(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        recommended(**change)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="head must be .*got 'pca'"):
        Recipe(head="pca")  # type: ignore[arg-type]  # wrong on purpose
    assert recommended(steps=0).rate_warmup == 0
