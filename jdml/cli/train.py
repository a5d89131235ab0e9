"""``jdml train``: train a model with any objective, with checkpoints, and score it on the test part."""

import logging
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from jdml import data, training
from jdml._optional_imports import is_pointer
from jdml._paths import expand_user
from jdml.cli.commands import print_table
from jdml.cli.options import defining, option_of
from jdml.cli.train_options import TrainOptions
from jdml.cli.training_data import read_training_data
from jdml.data.load import source_name
from jdml.distributed import is_main_process
from jdml.ops.checks import one_of
from jdml.recipes import EvaluationConfig, Recipe
from jdml.recipes.recipe import check_positives, for_classes, usual_batch
from jdml.runs.identity import data_fingerprint
from jdml.runs.run_files import write_json
from jdml.training.train_recipe import check_head, make_network, param_shapes, with_finetuning


@dataclass(frozen=True)
class Train(TrainOptions):
    """Train embeddings of a data set and score them on its test part.

    With --out, the same command resumes a run that was killed, with the same result; with more --steps it trains
    further. The test part is scored once, at the end; --validation holds out training rows for early stopping. For a
    paper's recipe and split see jdml benchmark.
    """

    def execute(self) -> None:
        """Train, score, print the scores, write metrics.json."""
        self.devices.join()
        options = self.resolve()
        run = TrainingRun(options)
        result = run.train()
        metrics = run.scores(result)
        if not is_main_process():
            return
        recipe, loss = run.recipe, run.recipe.loss
        method = "" if loss.method is None else f"{loss.method.name}, "
        miner = "" if loss.miner == "none" else f" + {loss.miner}"
        dim, seed = recipe.network.dim, options.run.seed
        title = f"{options.data.data}: {method}{loss.name}{miner}, {dim}-D, seed {seed}"
        if metrics:
            columns = ["scored on", *next(iter(metrics.values()))]
            rows = [[part, *scores.values()] for part, scores in metrics.items()]
            print_table(title, columns, rows)
        else:
            print(f"{title}: trained; --split none leaves nothing to score")
        if options.run.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(options.run.out / "metrics.json", {"step": step, **metrics})
        left_out = [f"note: {note}" for note in run.data.notes if note.startswith("left out")]
        print(*left_out, *run.next_steps(), sep="\n")


def provenance(command: str, options: Any) -> dict[str, Any]:
    """Return the command that repeats a run and the folder of its images, as JSON has them."""
    folder = options.data.data_dir
    if folder is not None and not is_pointer(str(folder)):
        folder = expand_user(folder).absolute()
    return {
        "command": shlex.join([*command.split(), *options.words]),
        "data_dir": None if folder is None else str(folder),
    }


@contextmanager
def log_lines() -> Iterator[None]:
    """Print the training's log, above its progress bar."""
    from tqdm import tqdm

    logger, handler = logging.getLogger("jdml.training"), logging.Handler(logging.INFO)
    handler.emit = lambda record: tqdm.write(record.getMessage())  # type: ignore[method-assign]
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class TrainingRun:
    """The data, network and sampler of resolved options, checked before any work."""

    def __init__(self, options: TrainOptions) -> None:
        self.options = options
        self.data = read_training_data(options.data, options.run.seed)
        self.recipe, self.notes = fit_to_data(options, self.data.train.labels)
        model, weights = str(self.recipe.network.name), options.weights
        self.preprocess, self.state = weights.preprocess(model), weights.state()
        self.network = make_network(
            self.recipe,
            self.data.train,
            seed=options.run.seed,
            preprocess=self.preprocess,
            pretrained=self.state and self.state.load,
            **weights.network_settings(model, options.network),
        )
        try:
            check_head(self.recipe, self.network, self.data.train, self.preprocess)
        except ValueError as error:
            if "head_init" in options.network:
                raise
            self.recipe = self.recipe.replace(network={"head_init": "random"})
            self.notes += (f"the head is initialized at random: {error}",)
        parts = self.recipe, self.network, self.data.train, self.preprocess
        self.model = with_finetuning(*parts, cache_folder=options.run.feature_cache)
        labels, views = self.data.train.labels, self.data.train.views
        self.sampler = self.recipe.batch.build(labels, options.run.seed, views)
        recall_at = training.recall_ranks(str(options.data.data))
        self.score: Callable[..., dict[str, float]] = partial(
            training.score, normalize=self.recipe.loss.normalization, recall_at=recall_at
        )
        self.monitor = self._monitor(recall_at)

    def train(self) -> training.FitResult:
        """Train, and print a summary at the start."""
        options, held_out, out = self.options, self.data.validation, self.options.run.out
        devices = options.devices.build(self.recipe.batch.rows)
        if is_main_process():
            print(*self.summary(), sep="\n")
        sampler, every = self.sampler, self.recipe.evaluation.every or training.Evaluation.every
        if options.data.of_files and not self.recipe.finetune.caches_features:
            augment = options.data.augmentation != "none"
            sampler = options.data.batches(options.run.seed, augment=augment)
        callbacks: list[Any] = []
        if options.run.tensorboard and out is not None:
            often = math.gcd(options.run.log_every, every)
            callbacks = [training.TensorBoard(out / "tensorboard", every=often)]
        with log_lines():
            return training.train(
                self.recipe,
                self.data.train,
                run=training.RunConfig(
                    folder=out,
                    checkpoint_every=options.run.checkpoint_every,
                    log_every=options.run.log_every,
                    allow_more_steps=True,
                    config={
                        **defining(options.data, options.weights, options.run),
                        "data_checksum": data_fingerprint(self.data.train),
                        "provenance": {
                            **provenance("jdml train", options),
                            "labels": self.data.labels,
                            "files_checksum": self.data.files_checksum,
                        },
                    },
                ),
                seed=options.run.seed,
                devices=devices,
                callbacks=callbacks,
                progress=not options.run.quiet,
                model=self.model,
                sampler=sampler,
                evaluation=training.Evaluation(
                    None if held_out is None else partial(self.score, queries=held_out),
                    every=every,
                    monitor=self.monitor,
                ),
                state=self.state,
                preprocess=self.preprocess,
            )

    def scores(self, result: training.FitResult) -> dict[str, dict[str, float]]:
        """Score test parts and held-out rows by all labels with two classes: ``{"test digit": {"R@1": …}}``."""
        scored: dict[str, tuple[data.Dataset, Any]] = {
            part: (queries, self.score(result.embedder, queries, gallery))
            for part, (queries, gallery) in self.data.tests.items()
        }
        if self.data.validation is not None and "validation" not in scored:
            step = int(result.state.step) if result.best is None else result.best.step
            record = next((r for r in result.history if r["step"] == step), {})
            scored["validation"] = self.data.validation, record
        rows: dict[str, dict[str, float]] = {}
        for part, (queries, values) in scored.items():
            views = [n for n, labels in queries.views.items() if np.ptp(labels)] or queries.views
            for name, value in values.items():
                view, slash, metric = name.partition("/")
                if slash and view in views:
                    rows.setdefault(f"{part} {view}", {})[metric] = float(value)
        return rows

    def summary(self) -> list[str]:
        """Describe the data, the network, the loss and the batches, a line each."""
        recipe, batch, labels = self.recipe, self.recipe.batch, self.data.train.labels
        parts = {} if self.data.validation is None else {"validation": self.data.validation}
        parts |= {part: queries for part, (queries, _) in self.data.tests.items()}
        others = [
            f"; {part} {len(queries):,} of {len(np.unique(queries.labels)):,}"
            for part, queries in parts.items()
        ]
        size = "×".join(map(str, self.data.train.images.shape[1:]))
        shapes = param_shapes(self.network, self.data.train, self.preprocess)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        pairs, miner = "", recipe.loss.miner
        if not recipe.loss.has_proxies:
            pairs = f", {batch.expected_positive_pairs(labels):,.3g} positive pairs a batch"
        mined = "" if miner == "none" else f" before {miner} selects" if pairs else f", {miner}"
        rows = f"{batch.rows:,} images"
        if batch.classes:
            rows += f" ({batch.classes} classes × {batch.samples_per_class})"
        per_epoch, steps = self.sampler.batches_per_epoch, int(batch.steps or 0)
        epochs = f"{steps:,} steps are {steps / per_epoch:,.1f} epochs"
        return [
            f"data      train {len(labels):,} images of {len(np.unique(labels)):,} classes{''.join(others)}",
            f"network   {recipe.network.name}, {parameters:,} parameters, images {size}",
            f"loss      {recipe.loss.name}{pairs}{mined}",
            f"batches   {rows}, {per_epoch:,} an epoch; {epochs}",
            *(f"note: {line}" for line in (*self.notes, *self.data.notes)),
        ]

    def next_steps(self) -> list[str]:
        """Return the next commands, a line each."""
        options, run = self.options.data, self.options.run
        if run.out is None:
            return ["nothing was saved: --out runs/NAME saves the model for jdml embed and search"]
        out, split = shlex.quote(str(run.out)), " --split test" if "test" in self.data.tests else ""
        where = shlex.quote(source_name(str(options.data), options.data_dir))
        embed = f"next: jdml embed {out} {where}{split} --out embeddings.npz"
        if not options.of_files:
            return [embed, f"      jdml export {out} --out model.stablehlo"]
        return [embed, f"      jdml search {out} PHOTO.jpg --gallery {where} -k 10"]

    def _monitor(self, recall_at: Sequence[int]) -> str | None:
        """Return the metric whose best parameters are kept; refuse options that need held-out rows without any."""
        evaluation, loss, typed = self.recipe.evaluation, self.recipe.loss, self.options.evaluation
        needs = [f"--method {self.options.method.method}"] * loss.needs_validation
        needs += [
            option_of(EvaluationConfig, n) for n in ("patience", "monitor", "every") if n in typed
        ]
        if needs and self.data.validation is None:
            raise ValueError(f"{needs[0]} needs --validation, held-out rows: --validation 0.2")
        if not (evaluation.patience or evaluation.monitor or loss.needs_validation):
            return None
        monitor = evaluation.monitor or f"{self.data.labels}/MAP@R"
        metrics = training.metric_names(recall_at)
        names = sorted(f"{view}/{metric}" for view in self.data.train.views for metric in metrics)
        one_of("--monitor", monitor, names)
        return monitor


def fit_to_data(options: TrainOptions, labels: np.ndarray) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with batches that fit the training labels ``[N]``, and notes about changes and advice."""
    parts, notes = dict(options.parts), []
    loss, batch = parts["loss"], parts["batch"]
    if options.recommends:
        parts |= for_classes(loss, batch, labels)
        notes.append(
            "no --loss and no --method is typed: this is the recommended recipe for photographs"
        )
        if "miner" in options.loss:
            parts["loss"] = loss
    else:
        parts["batch"] = usual_batch(batch, loss, labels)
    if options.has_batch:
        parts["batch"], changes = batch.fit_to_data(labels)
        notes += changes
    untrained = options.weights.weights is None and not is_pointer(str(parts["network"].name))
    if options.data.of_files and untrained:
        notes.append(
            "the network is untrained: pretrained weights need fewer steps and find more, see jdml weights convert "
            "--help and --weights"
        )
    recipe = Recipe(**parts)
    check_positives(recipe.batch, recipe.loss, labels)
    return recipe, tuple(notes)
