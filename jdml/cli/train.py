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

from jdml import data
from jdml._optional_imports import is_pointer
from jdml._paths import expand_user
from jdml.cli.commands import print_table
from jdml.cli.options import option_of, to_argv
from jdml.cli.train_options import TrainOptions, naming_options
from jdml.cli.training_data import read_training_data
from jdml.data.load import source_name
from jdml.distributed import is_main_process
from jdml.ops.checks import one_of
from jdml.recipes import EvaluationConfig, Recipe
from jdml.recipes.recipe import check_positives, for_classes, usual_batch
from jdml.runs.identity import data_fingerprint
from jdml.runs.run_files import write_json
from jdml.training import (
    Devices,
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
from jdml.training.initialization import dense_head
from jdml.training.train_recipe import make_network, param_shapes, with_finetuning

RECOMMENDED = "no --loss and no --method is typed: this is the recommended recipe for photographs"
UNTRAINED = (
    "the network is untrained: pretrained weights need fewer steps and find more, see jdml weights convert --help and "
    "--weights"
)


@dataclass(frozen=True)
class Train(TrainOptions):
    """Train embeddings of a data set and score them on its test part.

    With --out, the same command resumes a run that was killed, with the same result; with more --steps it trains
    further. The test part is scored once, at the end; --validation holds out training rows for early stopping. For a
    paper's recipe and split see jdml benchmark.
    """

    @naming_options()
    def execute(self) -> None:
        """Train, score, print the scores, write metrics.json."""
        self.devices.join()
        options = self.resolve()
        training = TrainingRun(options, provenance("jdml train", self))
        result = training.run()
        metrics = training.scores(result)
        if not is_main_process():
            return
        title = options.title(training.recipe)
        if metrics:
            columns = ["scored on", *next(iter(metrics.values()))]
            rows = [[part, *scores.values()] for part, scores in metrics.items()]
            print_table(title, columns, rows)
        else:
            print(f"{title}: trained; --split none leaves nothing to score")
        if options.run.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(options.run.out / "metrics.json", {"step": step, **metrics})
        left_out = [f"note: {note}" for note in training.data.notes if note.startswith("left out")]
        print(*left_out, *training.next_steps(), sep="\n")


def provenance(command: str, options: Any) -> dict[str, Any]:
    """Return the command that repeats a run and the folder of its images, as JSON has them."""
    folder = options.data.data_dir
    if folder is not None and not is_pointer(str(folder)):
        folder = expand_user(folder).absolute()
    return {
        "command": shlex.join([*command.split(), *to_argv(options)]),
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

    def __init__(self, options: TrainOptions, provenance: dict[str, Any]) -> None:
        self.options, self.provenance = options, provenance
        self.data = read_training_data(options.data, options.run.seed)
        self.train = self.data.train
        self.recipe, self.notes = fit_to_data(options, self.train.labels)
        model, weights = str(self.recipe.network.name), options.weights
        self.preprocess = weights.preprocess(model)
        self.network = make_network(
            self.recipe,
            self.train,
            seed=options.run.seed,
            preprocess=self.preprocess,
            pretrained=weights.pretrained(),
            **weights.network_settings(model, options.network),
        )
        self._check_head()
        parts = self.recipe, self.network, self.train, self.preprocess
        self.model = with_finetuning(*parts, cache_folder=options.run.feature_cache)
        self.sampler = self._sampler()
        recall_at = recall_ranks(str(options.data.data))
        self.score: Callable[..., dict[str, float]] = partial(
            score, normalize=self.recipe.loss.normalization, recall_at=recall_at
        )
        self.monitor = self._monitor(recall_at)

    def run(self) -> FitResult:
        """Train, and print a summary at the start."""
        options, held_out = self.options, self.data.validation
        mesh, devices = options.devices.mesh(self.recipe.batch.rows)
        for line in (*self.summary(), *devices) if is_main_process() else ():
            print(line)
        load, out = options.weights.pretrained(), options.run.out
        every, callbacks = self.recipe.evaluation.every or Evaluation.every, []
        if options.run.tensorboard and out is not None:
            often = math.gcd(options.run.log_every, every)
            callbacks = [TensorBoard(out / "tensorboard", every=often)]
        with log_lines():
            return train(
                self.recipe,
                self.train,
                run=RunConfig(
                    folder=out,
                    checkpoint_every=options.run.checkpoint_every,
                    log_every=options.run.log_every,
                    allow_more_steps=True,
                    config={
                        **options.defining(),
                        "data_checksum": data_fingerprint(self.train),
                        "provenance": {
                            **self.provenance,
                            "labels": self.data.labels,
                            "files_checksum": self.data.files_checksum,
                        },
                    },
                ),
                seed=options.run.seed,
                devices=Devices(mesh, micro_batch=options.devices.micro_batch),
                callbacks=callbacks,
                progress=not options.run.quiet,
                model=self.model,
                sampler=self.sampler,
                evaluation=Evaluation(
                    None if held_out is None else partial(self.score, queries=held_out),
                    every=every,
                    monitor=self.monitor,
                ),
                state=None if load is None else pretrained(load),
                preprocess=self.preprocess,
            )

    def scores(self, result: FitResult) -> dict[str, dict[str, float]]:
        """Score test parts and held-out rows by all labels with two classes: ``{"test digit": {"R@1": …}}``."""
        parts, embedder = dict(self.data.tests), result.embedder
        measured: dict[str, Any] = {n: self.score(embedder, *part) for n, part in parts.items()}
        if self.data.validation is not None and "validation" not in parts:
            step = int(result.state.step) if result.best is None else result.best.step
            measured["validation"] = next((r for r in result.history if r["step"] == step), {})
            parts["validation"] = self.data.validation, None
        rows: dict[str, dict[str, float]] = {}
        for part, values in measured.items():
            views = parts[part][0].views
            scored = [view for view, labels in views.items() if np.ptp(labels)] or views
            for name, value in values.items():
                view, slash, metric = name.partition("/")
                if slash and view in scored:
                    rows.setdefault(f"{part} {view}", {})[metric] = float(value)
        return rows

    def summary(self) -> list[str]:
        """Describe the data, the network, the loss and the batches, a row of a table each."""
        recipe, size = self.recipe, "×".join(map(str, self.train.images.shape[1:]))
        shapes = param_shapes(self.network, self.train, self.preprocess)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        batch = recipe.batch
        held_out = {} if self.data.validation is None else {"validation": self.data.validation}
        parts = {**held_out, **{part: queries for part, (queries, _) in self.data.tests.items()}}
        per_epoch, steps = self.sampler.batches_per_epoch, int(recipe.batch.steps or 0)
        tested = "".join(
            f"; {part} {len(queries):,} of {len(np.unique(queries.labels)):,}"
            for part, queries in parts.items()
        )
        pairs, miner = "", recipe.loss.miner
        if not recipe.loss.has_proxies:
            number = recipe.batch.expected_positive_pairs(self.train.labels)
            pairs = f", {number:,.3g} positive pairs a batch"
        mined = "" if miner == "none" else f" before {miner} selects" if pairs else f", {miner}"
        rows_of_batch = f"{batch.rows:,} images"
        if batch.classes:
            rows_of_batch += f" ({batch.classes} classes × {batch.samples_per_class})"
        rows = {
            "data": f"train {len(self.train):,} images of {len(np.unique(self.train.labels)):,} classes{tested}",
            "network": f"{recipe.network.name}, {parameters:,} parameters, images {size}",
            "loss": f"{recipe.loss.name}{pairs}{mined}",
            "batches": f"{rows_of_batch}, {per_epoch:,} an epoch; {steps:,} steps are {steps / per_epoch:,.1f} epochs",
        }
        lines = [f"{name:9} {text}" for name, text in rows.items()]
        return [*lines, *(f"note: {line}" for line in (*self.notes, *self.data.notes))]

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

    def _check_head(self) -> None:
        """Initialize the head at random where its default is impossible."""
        if self.recipe.network.head_init == "random":
            return
        try:
            dense_head(param_shapes(self.network, self.train, self.preprocess))
        except ValueError as error:
            if "head_init" in self.options.network:
                raise
            self.recipe = self.recipe.replace(network={"head_init": "random"})
            self.notes += (f"the head is initialized at random: {error}",)

    def _sampler(self) -> Any:
        options, recipe = self.options, self.recipe
        sampler = recipe.batch.build(self.train.labels, options.run.seed, self.train.views)
        if not options.data.of_files or recipe.finetune.caches_features:
            return sampler
        return data.ImageBatches(
            self.train,
            sampler,
            seed=options.run.seed,
            augment=options.data.augmentation != "none",
            workers=options.data.workers,
            on_bad_image=options.data.bad_image_policy,
        )

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
        metrics = metric_names(recall_at)
        names = sorted(f"{view}/{metric}" for view in self.train.views for metric in metrics)
        one_of("--monitor", monitor, names)
        return monitor


def fit_to_data(options: TrainOptions, labels: np.ndarray) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with batches that fit the training labels ``[N]``, and notes about changes and advice."""
    parts, notes = dict(options.parts), []
    loss, batch = parts["loss"], parts["batch"]
    if options.recommends:
        parts |= for_classes(loss, batch, labels)
        notes.append(RECOMMENDED)
        if "miner" in options.loss:
            parts["loss"] = loss
    else:
        parts["batch"] = usual_batch(batch, loss, labels)
    if options.has_batch:
        parts["batch"], changes = batch.fit_to_data(labels)
        notes += changes
    untrained = options.weights.weights is None and not is_pointer(str(parts["network"].name))
    if options.data.of_files and untrained:
        notes.append(UNTRAINED)
    recipe = Recipe(**parts)
    check_positives(recipe.batch, recipe.loss, labels)
    return recipe, tuple(notes)
