"""A run of ``jdml train``: what its options read, what trains, how it is scored and told."""

import contextlib
import logging
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from jdml import data
from jdml.cli.options.base import as_typed
from jdml.cli.options.train import TrainOptions
from jdml.cli.start_of_run import data_checksum
from jdml.cli.training_data import read_training_data, scored_views
from jdml.recipes import Recipe, beginning, make_objective, make_sampler
from jdml.recipes.objective import normalization
from jdml.recipes.sampler import (
    check_batches,
    check_positives,
    positive_pairs,
    with_batch_that_fits,
    with_usual_batch,
)
from jdml.recipes.words import write_batch
from jdml.training import (
    Devices,
    Embedder,
    Evaluation,
    FitResult,
    RunConfig,
    TensorBoard,
    metric_names,
    pretrained,
    recall_ranks,
    score,
    train,
)
from jdml.training.by_recipe import check_head, frozen, make_network, pattern_of
from jdml.training.placement import writes

RECOMMENDED = "no --loss and no --method is named: the recommended recipe for photographs"
RANDOM_HEAD = "the head begins at random"


class TrainingRun:
    """What settled options stand for: data, network, sampler; checked before any work.

    Args:
        options: settled.
        recipe: how they train.
        started: how the run was started, for its folder.
        hints: what else is told before the first step.
    """

    def __init__(
        self,
        options: TrainOptions,
        recipe: Recipe,
        started: dict[str, Any],
        hints: Sequence[str] = (),
    ) -> None:
        self.options, self.started, self.hints = options, started, hints
        self.data = read_training_data(options, options.seed)
        self.train = self.data.train
        self.recipe, self.notes = fitted(recipe, options, self.train.labels)
        own = options.network_settings(str(recipe.network))
        self.preprocess = options.preprocess(str(recipe.network))
        settings = {
            "seed": options.seed,
            "preprocess": self.preprocess,
            "pretrained": options.pretrained(),
        }
        with as_typed():
            self.model = make_network(self.recipe, self.train, **settings, **own)
        self.recall_at = recall_ranks(str(options.data))
        self._check_head()
        self._check()
        self.sampler = self._sampler()
        self.monitor = self._monitor()

    def run(self) -> FitResult:
        """Train, after saying what is trained on what."""
        options = self.options
        mesh, where = options.mesh(self.recipe.batch_size)
        for line in (*self.summary(), *where) if writes() else ():
            print(line, flush=True)
        log_every, evaluate_every = options.log_every or 50, options.evaluate_every or 100
        callbacks = []
        if options.tensorboard and options.out is not None:
            every = math.gcd(log_every, evaluate_every)
            callbacks.append(TensorBoard(options.out / "tensorboard", every=every))
        load, features = options.pretrained(), options.features
        with _printing():
            return train(
                self.recipe,
                self.train,
                run=RunConfig(
                    options.out,
                    checkpoint_every=options.checkpoint_every,
                    log_every=log_every,
                    allow_more_steps=True,
                    config=self._config(),
                ),
                seed=options.seed,
                devices=Devices(mesh, micro_batch=options.micro_batch),
                callbacks=callbacks,
                progress=not options.quiet,
                model=frozen(
                    self.recipe, self.model, self.train, self.preprocess, cache_folder=features
                ),
                sampler=self.sampler,
                evaluation=Evaluation(
                    self.validate if self.data.validation is not None else None,
                    evaluate_every,
                    self.monitor,
                    options.patience,
                ),
                state=None if load is None else pretrained(load),
                preprocess=self.preprocess,
            )

    def _config(self) -> dict[str, Any]:
        """What the run's folder has next to the recipe."""
        started = {
            **self.started,
            "labels": self.data.labels,
            "files_checksum": self.data.files_checksum,
        }
        checksum = data_checksum(self.train)
        return {**self.options.defining(), "data_checksum": checksum, "started": started}

    def validate(self, embedder: Embedder) -> dict[str, float]:
        """Score the validation part by all its labels."""
        return self._score(embedder, self.data.validation, None)

    def test(self, embedder: Embedder) -> dict[str, dict[str, float]]:
        """Score each test part by all its labels: ``{"test digit": {"R@1": …}}``."""
        rows: dict[str, dict[str, float]] = {}
        for part, (queries, gallery) in self.data.tests.items():
            told = scored_views(queries) or tuple(queries.views)
            for name, value in self._score(embedder, queries, gallery).items():
                view, metric = name.split("/", 1)
                if view in told:
                    rows.setdefault(f"{part} {view}", {})[metric] = value
        return rows

    def validated(self, result: FitResult) -> dict[str, dict[str, float]]:
        """Give what the parameters that are scored had on the validation part: ``{"validation digit": {"R@1": …}}``."""
        if "validation" in self.data.tests:
            return {}
        step = int(result.state.step) if result.best is None else result.best.step
        record = next((r for r in result.history if r["step"] == step), {})
        rows: dict[str, dict[str, float]] = {}
        for view in self.train.views:
            for metric in metric_names(self.recall_at):
                if f"{view}/{metric}" in record:
                    value = float(record[f"{view}/{metric}"])
                    rows.setdefault(f"validation {view}", {})[metric] = value
        return rows

    def summary(self) -> list[str]:
        """Say what is trained on what, before it begins."""
        images, recipe = self.train.images, self.recipe
        first = jax.ShapeDtypeStruct((1, *images.shape[1:]), np.float32)
        shapes = jax.eval_shape(
            partial(self.model.init, train=False),
            jax.random.key(0),
            jax.eval_shape(self.preprocess, first),
        )
        parameters = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes["params"]))
        size = "×".join(map(str, images.shape[1:]))
        batch = write_batch(recipe.batch)
        per_epoch, steps = self.sampler.batches_per_epoch, int(recipe.steps or 0)
        scored = "".join(
            f"; {part} {len(queries):,} of {len(np.unique(queries.labels)):,}"
            for part, (queries, _) in self.scored_parts().items()
        )
        lines = [
            f"{recipe.network}: {parameters:,} parameters, images {size}",
            f"train {len(self.train):,} images of {len(np.unique(self.train.labels)):,} classes{scored}; "
            f"{per_epoch:,} batches of {batch} an epoch, {steps:,} steps are {steps / per_epoch:,.1f} epochs",
        ]
        if not recipe.has_proxies:
            pairs = positive_pairs(recipe, self.train.labels)
            mined = "" if recipe.miner == "none" else f", of those that {recipe.miner} takes"
            lines.append(
                f"a batch has {pairs:,.3g} pairs of one class, which {recipe.loss} learns from{mined}"
            )
        lines += [f"note: {line}" for line in (*self.notes, *self.data.notes)]
        return [*lines, *self.hints]

    def scored_parts(self) -> dict[str, tuple[data.Dataset, data.Dataset | None]]:
        """What is scored on the way and at the end."""
        held_out = self.data.validation
        return {**({} if held_out is None else {"validation": (held_out, None)}), **self.data.tests}

    def next_steps(self) -> list[str]:
        """Say what to type next."""
        options = self.options
        if options.out is None:
            return [
                "nothing was kept: --out runs/NAME writes the model, for jdml embed, search and export"
            ]
        where = str(options.data_dir) if options.data == "folder" else str(options.data)
        if options.data != "folder" and options.data_dir is not None:
            where += f":{options.data_dir}"
        where, out = shlex.quote(where), shlex.quote(str(options.out))
        split = " --split test" if "test" in self.data.tests else ""
        embed = f"next: jdml embed {out} {where}{split} --out embeddings.npz"
        if not options.of_files:
            return [embed, f"      jdml export {out} --out model.stablehlo"]
        return [embed, f"      jdml search {out} PHOTO.jpg --gallery {where} -k 10"]

    def _check(self) -> None:
        """Refuse what the data do not have."""
        options = self.options
        if self.data.validation is None and options.patience is not None:
            raise ValueError("--patience needs --validation, a held-out share of the training rows")
        if self.data.validation is None and self.recipe.has_hook:
            raise ValueError(
                f"--method {options.method} needs --validation, held-out rows: --validation 0.2"
            )
        if options.memory > len(self.train):
            raise ValueError(
                f"--memory must be at most the {len(self.train)} images that train, got {options.memory}"
            )
        with as_typed():
            # tells wrong settings before any work
            make_objective(self.recipe, self.train.num_classes)
            pattern_of(self.recipe, self.model, self.train, self.preprocess)
            check_batches(self.recipe, self.train.views)

    def _check_head(self) -> None:
        """Refuse a head that cannot begin as typed; where nobody typed how it begins at random, and that is told."""
        if self.recipe.head == "random":
            return
        try:
            with as_typed():
                check_head(self.recipe, self.model, self.train, self.preprocess)
        except ValueError as error:
            if self.options.head is not None:
                raise
            self.recipe = replace(self.recipe, head="random")
            self.notes += (f"{RANDOM_HEAD}: {error}",)

    def _sampler(self) -> Any:
        options, recipe = self.options, self.recipe
        try:
            sampler = make_sampler(recipe, self.train.labels, options.seed, self.train.views)
        except ValueError as error:
            raise ValueError(f"--batch {write_batch(recipe.batch)}: {error}") from error
        if not options.of_files or recipe.keeps:
            return sampler
        return data.ImageBatches(
            self.train,
            sampler,
            seed=options.seed,
            augment=options.augmentation != "none",
            workers=options.workers,
            on_bad_image=options.on_bad_image or "stop",
        )

    def _monitor(self) -> str | None:
        options = self.options
        if options.patience is None and not self.recipe.has_hook:
            return None
        monitor = options.monitor or f"{self.data.labels}/MAP@R"
        metrics = metric_names(self.recall_at)
        names = sorted(f"{view}/{metric}" for view in self.train.views for metric in metrics)
        if monitor not in names:
            raise ValueError(f"--monitor must be one of {', '.join(names)}, got {monitor!r}")
        return monitor

    def _score(self, embedder: Any, queries: Any, gallery: Any) -> dict[str, float]:
        return score(
            embedder,
            queries,
            gallery,
            normalize=normalization(self.recipe),
            recall_at=self.recall_at,
        )


class _Print(logging.Handler):
    """Print what training logs, warnings on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        print(record.getMessage(), file=stream, flush=True)


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Show what training logs for people."""
    log, handler = logging.getLogger("jdml.training"), _Print()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def fitted(
    recipe: Recipe, options: TrainOptions, labels: np.ndarray
) -> tuple[Recipe, tuple[str, ...]]:
    """Fit the batch to the data, and what is recommended to the size of its classes.

    Args:
        recipe: how is trained.
        options: as typed.
        labels: ``[N]``, of the images that train.

    Returns:
        The recipe, and a line where the batch is another one than was typed, or where the recipe is the recommended
        one.

    Raises:
        ValueError: batches in which the loss has nothing to compare.
    """
    usual = beginning.for_classes if options.recommends else with_usual_batch
    made, notes = usual(recipe, labels), [RECOMMENDED] if options.recommends else []
    if options.miner is not None:
        made = replace(made, miner=recipe.miner)
    if options.batch is not None:
        fits = with_batch_that_fits(recipe, labels)
        made = replace(made, batch=fits.batch, small_classes=recipe.small_classes)
        made, few = _padded(made, labels)
        notes += few
    if options.batch is not None and made.batch != recipe.batch:
        there = f"{len(labels):,} images of {len(np.unique(labels)):,} classes train"
        notes.append(f"--batch is {write_batch(made.batch)}, not {options.batch}: {there}")
    with as_typed():
        check_positives(made, labels)
    return made, tuple(notes)


def _padded(recipe: Recipe, labels: np.ndarray) -> tuple[Recipe, list[str]]:
    """Let classes that are smaller than their places in a batch leave some empty, and say so."""
    sizes = np.unique(labels, return_counts=True)[1]
    samples = recipe.batch[1] if isinstance(recipe.batch, tuple) else 1
    few = int((sizes < samples).sum())
    if not few:
        return recipe, []
    told = f"{few:,} of {len(sizes):,} classes have fewer than {samples} images: their places in a batch stay empty"
    return replace(recipe, small_classes="pad"), [told]
