"""Our rows of ``jdml benchmark`` and the paper's beside them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jdml.cli.options.base import flag
from jdml.cli.options.benchmark import BenchmarkOptions
from jdml.recipes import Recipe, settings_of
from jdml.recipes.printed import Row, printed

Rows = dict[str, dict[str, float]]


def over(runs: Sequence[Rows], statistic: Callable[[Any], Any]) -> Rows:
    """A statistic over seeds of each row's metrics.

    Args:
        runs: the rows of each seed.
        statistic: of the values of all seeds.

    Returns:
        The rows; those of one seed as they are.
    """
    if len(runs) == 1:
        return runs[0]
    return {
        row: {name: float(statistic([rows[row][name] for rows in runs])) for name in values}
        for row, values in runs[0].items()
    }


def show(
    title: str,
    runs: Sequence[Rows],
    paper: Mapping[str, Mapping[str, float]],
    unlike: tuple[str, ...],
    called: Mapping[str, str],
) -> None:
    """Print our rows and the paper's, in percent, and in what the two are not alike.

    Args:
        title: of the table.
        runs: ours, of each seed.
        paper: the paper's rows, in percent.
        unlike: in what the task is another than the paper's.
        called: what rows are called in the table, where it is not their name.
    """
    from jdml.cli.terminal import print_table

    means, spreads = over(runs, np.mean), over(runs, partial(np.std, ddof=1))
    names = [name for name in next(iter(means.values())) if name not in ("queries", "step")]

    def shown(row: str, name: str) -> str:
        mean = f"{100 * means[row][name]:.1f}"
        return mean if len(runs) == 1 else f"{mean} ± {100 * spreads[row][name]:.1f}"

    table: list[list[Any]] = [
        [called.get(row, row), *(shown(row, name) for name in names)] for row in means
    ]
    for row, values in paper.items():
        table.append([row, *(f"{values[name]:.1f}" if name in values else "–" for name in names)])
    print_table(title, ["%", *names], table)
    if paper and unlike:
        print(f"not the paper's task: {'; '.join(unlike)}")


def paper_rows(options: BenchmarkOptions, recipe: Recipe) -> dict[str, Row]:
    """What a paper reports of such a run.

    Args:
        options: of the command.
        recipe: what they stand for.

    Returns:
        Rows in percent; none where no paper has one.
    """
    backbone = str(options.backbone)
    if backbone == "vit_s16" and options.input_stats == "vit_s16_dino":
        backbone = "vit_s16_dino"
    own = {**settings_of(options.method), **options.method_settings()}
    if own.get("single") or options.protocol == "ablation":
        return {}
    return printed(
        options.protocol,
        options.method,
        backbone,
        options.dataset,
        loss=own.get("loss"),
        dim=recipe.dim,
        pooling=str(recipe.pooling),
        per_class=recipe.num_proxies or 1,
    )


def called(options: BenchmarkOptions) -> dict[str, str]:
    """What a row of ours is called where its name does not tell the whole of it.

    Args:
        options: of the command.

    Returns:
        Names by row.
    """
    if options.method == "ccp" and options.protocol == "conventional":
        return {"ours": "ours, 3/4 of the classes"}
    return {}


def differences(options: BenchmarkOptions) -> tuple[str, ...]:
    """In what options a run is not the paper's.

    Args:
        options: of the command.

    Returns:
        What was typed, and what is known to differ.
    """
    names = ("dim", "batch", "steps", "image_size", "lr", "proxies_per_class", "sampled_classes",
             "label_noise", *(() if options.method == "nir" else ("pooling",)))  # fmt: skip
    own = [(name, getattr(options, name)) for name in names]
    without = ("proxies_per_class", 0)  # is no default, as other zeros are
    typed = [(name, value) for name, value in own if value or (name, value) == without]
    changed = [f"{flag(name)} {value}" for name, value in typed]
    changed += [f"--loss-setting {setting}" for setting in options.loss_setting]
    which = ("loss=", "pooling=")  # these say which row is the paper's
    changed += [
        f"--method-setting {setting}"
        for setting in options.method_setting
        if not setting.startswith(which)
    ]
    if called(options):
        changed.append("a quarter of the training classes only tells when a problem ends")
    return (*changed, *(["random weights"] if options.weights is None else []))
