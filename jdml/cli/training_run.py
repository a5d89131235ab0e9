"""A run of ``jdml train``: the data that its options read, what trains, and its scores."""

import math
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jdml import data
from jdml.cli.options.parts import naming_options
from jdml.cli.options.train import TrainOptions
from jdml.cli.provenance import data_checksum
from jdml.cli.terminal import log_lines
from jdml.cli.training_data import read_training_data, scored_views
from jdml.distributed import is_main_process
from jdml.recipes import Recipe, default_recipe
from jdml.recipes.default_recipe import check_positives, usual_batch
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
from jdml.training.train_recipe import check_head, frozen, make_network, pattern_of

RECOMMENDED = "no --loss and no --method is named: the recommended recipe for photographs"
RANDOM_HEAD = "the head begins at random"


class TrainingRun:
    """The data, network and sampler of settled options, checked before any work."""

    def __init__(
        self, options: TrainOptions, started: dict[str, Any], hints: Sequence[str] = ()
    ) -> None:
        self.options, self.started, self.hints = options, started, hints
        self.data = read_training_data(options.data, options.run.seed)
        self.train = self.data.train
        self.recipe, self.notes = fit_to_data(options, self.train.labels)
        model, weights = str(self.recipe.network.name), options.weights
        self.preprocess = weights.preprocess(model)
        with naming_options():
            self.model = make_network(
                self.recipe,
                self.train,
                seed=options.run.seed,
                preprocess=self.preprocess,
                pretrained=weights.pretrained(),
                **weights.network_settings(model),
            )
        self.recall_at = recall_ranks(str(options.data.data))
        self._check_head()
        self._check()
        self.sampler = self._sampler()
        self.monitor = self._monitor()

    def run(self) -> FitResult:
        """Train, after printing what is trained on what."""
        options, evaluation, held_out = self.options, self.recipe.evaluation, self.data.validation
        mesh, devices = options.devices.mesh(self.recipe.batch.rows)
        for line in (*self.summary(), *devices) if is_main_process() else ():
            print(line, flush=True)
        load, out = options.weights.pretrained(), options.run.out
        every, log_every, callbacks = evaluation.every or 100, options.run.log_every or 50, []
        if options.run.tensorboard and out is not None:
            callbacks = [TensorBoard(out / "tensorboard", every=math.gcd(log_every, every))]
        with naming_options(), log_lines("jdml.training"):
            return train(
                self.recipe,
                self.train,
                run=RunConfig(
                    folder=out,
                    checkpoint_every=options.run.checkpoint_every,
                    log_every=log_every,
                    allow_more_steps=True,
                    config={
                        **options.defining(),
                        "data_checksum": data_checksum(self.train),
                        "started": {
                            **self.started,
                            "labels": self.data.labels,
                            "files_checksum": self.data.files_checksum,
                        },
                    },
                ),
                seed=options.run.seed,
                devices=Devices(mesh, micro_batch=options.devices.micro_batch),
                callbacks=callbacks,
                progress=not options.run.quiet,
                model=frozen(
                    self.recipe,
                    self.model,
                    self.train,
                    self.preprocess,
                    cache_folder=options.run.feature_cache,
                ),
                sampler=self.sampler,
                evaluation=Evaluation(
                    None if held_out is None else partial(self._score, queries=held_out),
                    every=every,
                    monitor=self.monitor,
                    patience=evaluation.patience,
                ),
                state=None if load is None else pretrained(load),
                preprocess=self.preprocess,
            )

    def test(self, embedder: Embedder) -> dict[str, dict[str, float]]:
        """Score each test part by all its labels: ``{"test digit": {"R@1": …}}``."""
        rows: dict[str, dict[str, float]] = {}
        for part, (queries, gallery) in self.data.tests.items():
            scored = scored_views(queries) or tuple(queries.views)
            for name, value in self._score(embedder, queries, gallery).items():
                view, metric = name.split("/", 1)
                if view in scored:
                    rows.setdefault(f"{part} {view}", {})[metric] = value
        return rows

    def validated(self, result: FitResult) -> dict[str, dict[str, float]]:
        """Return the validation scores of the parameters that are kept: ``{"validation digit": {"R@1": …}}``."""
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
        """Return what is trained on what, a line each."""
        images, recipe = self.train.images, self.recipe
        first = jax.ShapeDtypeStruct((1, *images.shape[1:]), np.float32)
        shapes = jax.eval_shape(
            partial(self.model.init, train=False),
            jax.random.key(0),
            jax.eval_shape(self.preprocess, first),
        )
        parameters = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes["params"]))
        size = "×".join(map(str, images.shape[1:]))
        batch = recipe.batch
        held_out = {} if self.data.validation is None else {"validation": self.data.validation}
        parts = {**held_out, **{part: queries for part, (queries, _) in self.data.tests.items()}}
        per_epoch, steps = self.sampler.batches_per_epoch, int(recipe.batch.steps or 0)
        scored = "".join(
            f"; {part} {len(queries):,} of {len(np.unique(queries.labels)):,}"
            for part, queries in parts.items()
        )
        lines = [
            f"{recipe.network.name}: {parameters:,} parameters, images {size}",
            f"train {len(self.train):,} images of {len(np.unique(self.train.labels)):,} classes{scored}; "
            f"{per_epoch:,} batches of {batch} an epoch, {steps:,} steps are {steps / per_epoch:,.1f} epochs",
        ]
        if not recipe.loss.has_proxies:
            pairs = recipe.batch.expected_positive_pairs(self.train.labels)
            miner = recipe.loss.miner
            mined = "" if miner == "none" else f", of those that {miner} takes"
            lines.append(
                f"a batch has {pairs:,.3g} pairs of one class, which {recipe.loss.name} learns from{mined}"
            )
        lines += [f"note: {line}" for line in (*self.notes, *self.data.notes)]
        return [*lines, *self.hints]

    def next_steps(self) -> list[str]:
        """Return what to type next, a line each."""
        options, run = self.options.data, self.options.run
        if run.out is None:
            return [
                "nothing was saved: --out runs/NAME writes the model, for jdml embed, search and export"
            ]
        where = str(options.data_dir) if options.data == "folder" else str(options.data)
        if options.data != "folder" and options.data_dir is not None:
            where += f":{options.data_dir}"
        where, out = shlex.quote(where), shlex.quote(str(run.out))
        split = " --split test" if "test" in self.data.tests else ""
        embed = f"next: jdml embed {out} {where}{split} --out embeddings.npz"
        if not options.of_files:
            return [embed, f"      jdml export {out} --out model.stablehlo"]
        return [embed, f"      jdml search {out} PHOTO.jpg --gallery {where} -k 10"]

    def _check(self) -> None:
        """Refuse what the data do not have."""
        recipe = self.recipe
        needs = {"--patience": recipe.evaluation.patience is not None}
        needs["--evaluate-every"] = "every" in self.options.evaluation
        needs[f"--method {self.options.method.method}"] = recipe.loss.needs_validation
        for option, true in needs.items() if self.data.validation is None else ():
            if true:
                raise ValueError(f"{option} needs --validation, held-out rows: --validation 0.2")
        if recipe.loss.memory_size > len(self.train):
            raise ValueError(
                f"--memory-size must be at most the {len(self.train)} images that train, "
                f"got {recipe.loss.memory_size}"
            )
        with naming_options():
            pattern_of(recipe, self.model, self.train, self.preprocess)
            recipe.batch.check_views(self.train.views)

    def _check_head(self) -> None:
        """Refuse a head that cannot begin as typed; where nothing was typed it begins at random, with a note."""
        if self.recipe.network.head_init == "random":
            return
        try:
            with naming_options():
                check_head(self.recipe, self.model, self.train, self.preprocess)
        except ValueError as error:
            if "head_init" in self.options.network:
                raise
            self.recipe = self.recipe.replace(network={"head_init": "random"})
            self.notes += (f"{RANDOM_HEAD}: {error}",)

    def _sampler(self) -> Any:
        options, recipe = self.options, self.recipe
        try:
            sampler = recipe.batch.build(self.train.labels, options.run.seed, self.train.views)
        except ValueError as error:
            raise ValueError(f"--classes-per-batch {recipe.batch.classes}: {error}") from error
        if not options.data.of_files or recipe.finetune.caches_features:
            return sampler
        return data.ImageBatches(
            self.train,
            sampler,
            seed=options.run.seed,
            augment=options.data.augmentation != "none",
            workers=options.data.workers,
            on_bad_image=options.data.on_bad_image or "stop",
        )

    def _monitor(self) -> str | None:
        evaluation = self.recipe.evaluation
        if evaluation.patience is None and not self.recipe.loss.needs_validation:
            return None
        monitor = evaluation.monitor or f"{self.data.labels}/MAP@R"
        metrics = metric_names(self.recall_at)
        names = sorted(f"{view}/{metric}" for view in self.train.views for metric in metrics)
        if monitor not in names:
            raise ValueError(f"--monitor must be one of {', '.join(names)}, got {monitor!r}")
        return monitor

    def _score(self, embedder: Any, queries: Any, gallery: Any = None) -> dict[str, float]:
        return score(
            embedder,
            queries,
            gallery,
            normalize=self.recipe.loss.normalization,
            recall_at=self.recall_at,
        )


def fit_to_data(options: TrainOptions, labels: np.ndarray) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with batches that fit the labels ``[N]`` that train, and lines about what was changed."""
    typed, notes = options.recipe(), []
    if options.recommends:
        recipe, notes = default_recipe.for_classes(typed, labels), [RECOMMENDED]
        if "miner" in options.loss:
            recipe = recipe.replace(loss={"miner": typed.loss.miner})
    else:
        recipe = typed.replace(batch=usual_batch(typed.batch, typed.loss, labels))
    if options.has_batch:
        batch = typed.batch.fit_to_data(labels)
        if str(batch) != str(typed.batch):
            there = f"{len(labels):,} images of {len(np.unique(labels)):,} classes train"
            notes.append(f"batches are {batch}, not {typed.batch}: {there}")
        sizes = np.unique(labels, return_counts=True)[1]
        samples = batch.samples_per_class or 1
        if few := int((sizes < samples).sum()):
            batch = batch.replace(on_small_class="pad")
            notes.append(
                f"{few:,} of {len(sizes):,} classes have fewer than {samples} images: "
                "their places in a batch stay empty"
            )
        recipe = recipe.replace(batch=batch)
    with naming_options():
        check_positives(recipe.batch, recipe.loss, labels)
    return recipe, tuple(notes)
