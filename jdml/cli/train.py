"""``jdml train``: train a model with any objective, with checkpoints, and score it on the test part."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml import data
from jdml.cli.names import (
    PAIR_LOSSES,
    PROXY_LOSSES,
    Loss,
    build_miner,
    parse_batch,
    parse_settings,
)
from jdml.training import Embedder, metric_names, recall_ranks, score

# Options that do not change what is computed, and so may differ when a run is resumed.
NOT_CONFIG = ("data_dir", "out", "quiet", "tensorboard", "workers")


@dataclass(frozen=True)
class Train:
    """Train embeddings of a data set and score them on its test part.

    With --out, a killed run goes on where it was when the same command is given again, and ends with
    the same numbers. The test part is looked at once, at the end; --validation holds out a part of the
    training rows for evaluations on the way and for early stopping.

    An example with even and odd digits: easy positive sampling keeps the digits apart.

    jdml train --labels parity --miner eps+semi_hard --dim 2 --normalize none

    An example with Omniglot: multi-similarity loss, 4 alphabets of 40 samples a batch.

    jdml train --data omniglot --data-dir DIR --model small --dim 128 --loss multi_similarity
    --loss-setting beta=40 --batch 4x40 --lr 5e-4 --steps 1200 --out runs/ms
    """

    data: Literal["digits", "mnist", "omniglot", "cub", "cars", "sop", "inshop", "folder"] = (
        "digits"
    )
    """Data set. digits (1,797 real 8x8 images) needs no files. folder: a folder of images for each class; half of
    the classes train."""
    data_dir: Path | None = None
    """Folder with the data set's own files, as the original comes (jdml data check NAME DIR looks at it)."""
    image_size: int | None = None
    """Height and width of the images, in pixels: of Omniglot's (default: 28), or of the crops of image files
    (default: the augmentation's)."""
    augmentation: Literal["mlrc", "conventional", "none"] | None = None
    """How image files are cropped in training. conventional (the default): 224 pixels; mlrc: 227, of images of short
    side 256; none: the centre, 224."""
    workers: int | None = None
    """Threads that decode image files. Default: one for each core."""
    on_bad_image: Literal["stop", "skip"] | None = None
    """What a damaged image file does: stop the run (the default), or be left out and counted. With skip, the images
    that are scored are looked through before the first step."""
    labels: str | None = None
    """The labels to train on: digit or parity (digits, mnist); alphabet or letter (omniglot); class or super_class
    (sop). Default: the first. The table scores all of them."""
    train_classes: tuple[int, ...] = ()
    """Train on these classes only (numbers of the data set's first labels, such as digits 0 1 2 3 4 5); the table then
    scores seen and unseen classes apart. Default: all."""
    validation: float = 0.0
    """Share of the training rows held out for evaluation during training, 0 to below 1."""

    loss: Loss = "triplet"
    """The loss. Proxy losses learn one vector or more per class."""
    loss_setting: tuple[str, ...] = ()
    """The loss's own numbers, as name=value: margin=0.2 squared=True."""
    miner: str = "none"
    """Which pairs a pair loss sees: none, or names joined by +, each with its settings after a colon:
    eps+semi_hard, easy_positive+semi_hard_negative:margin=0.3, random_positive, hard_negative,
    distance_weighted, multi_similarity, multi_similarity_negative, ..."""
    memory: int = 0
    """Also compare a pair loss's batch with this many remembered embeddings (cross-batch memory)."""
    proxies_per_class: int = 1
    """Proxies per class of a proxy loss."""

    model: Literal["eps", "small", "resnet20v2", "resnet18", "resnet50"] = "eps"
    """eps: two convolutions, made for 2-D pictures of digits. small: four convolutions.
    resnet20v2: nine residual blocks. resnet18, resnet50: for photographs."""
    dim: int = 64
    """Dimension of the embeddings."""
    normalize: Literal["sphere", "none"] = "sphere"
    """sphere: embeddings are scaled to length 1, in the loss and in the scores."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """sgd has momentum 0.9."""
    lr: float = 1e-3
    """Learning rate of the model."""
    proxies_lr_factor: float = 100.0
    """Proxies learn this many times as fast as the model."""
    weight_decay: float = 0.0
    """Weight decay of the model: decoupled with adamw, added to the gradient with adam and sgd."""

    batch: str = "64"
    """CLASSESxSAMPLES, such as 4x40, or a number of random samples."""
    steps: int = 1000
    """Training steps, one batch each."""
    evaluate_every: int = 100
    """Steps between evaluations on the validation part."""
    patience: int | None = None
    """Stop after this many evaluations without improvement, and score the best parameters. Needs --validation.
    Default: train all steps and score the last."""
    monitor: str | None = None
    """What improvement is measured by, LABELS/METRIC. Default: MAP@R of the training labels, such as digit/MAP@R."""
    seed: int = 0
    """Of the initial parameters, the batches, the miners and the held-out rows."""

    out: Path | None = None
    """Folder of the run: config.json, log.jsonl, checkpoints, metrics.json."""
    checkpoint_every: int | None = None
    """Steps between checkpoints. Default: --evaluate-every."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the folder."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        """Train, score, show, write metrics.json."""
        from jdml.cli.show import print_table
        from jdml.training import fit
        from jdml.training.checkpoint import write_json

        job = Job(self)
        result = fit(
            job.model,
            job.objective,
            job.optimizer,
            job.train,
            job.sampler,
            steps=self.steps,
            seed=self.seed,
            evaluate=job.validate if job.validation is not None else None,
            evaluate_every=self.evaluate_every,
            monitor=job.monitor,
            patience=self.patience,
            out_dir=self.out,
            checkpoint_every=self.checkpoint_every,
            progress=not self.quiet,
            tensorboard=self.tensorboard,
            config=self.config(),
        )
        metrics = job.test(result.embedder)
        print_table(self.title(), *as_table(metrics))
        if self.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(self.out / "metrics.json", {"step": step, **metrics})

    def config(self) -> dict[str, Any]:
        """Return what defines the run: the options that change what is computed."""
        settings = {k: v for k, v in asdict(self).items() if k not in NOT_CONFIG}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}

    def title(self) -> str:
        """Return one line that names the run."""
        miner = "" if self.miner == "none" else f" + {self.miner}"
        return f"{self.data}: {self.loss}{miner}, {self.dim}-D, seed {self.seed}"


class Job:
    """What the options stand for: data, model, objective, optimizer, sampler; checked before any work."""

    def __init__(self, options: Train) -> None:
        self.options = options
        self._check()
        classes, samples = parse_batch(options.batch)
        self.train, self.validation, self.tests = self._load()
        self.labels = options.labels or next(iter(self.train.views))
        self.train = self.train.relabel(self.labels)
        self.model = self._model()
        self.objective = self._objective()
        self.optimizer = self._optimizer()
        self.sampler = self._sampler(classes, samples)
        self.monitor = None
        if options.patience is not None:
            self.monitor = options.monitor or f"{self.labels}/MAP@R"
            metrics = metric_names(recall_ranks(options.data))
            names = sorted(f"{view}/{metric}" for view in self.train.views for metric in metrics)
            if self.monitor not in names:
                raise ValueError(
                    f"--monitor must be one of {', '.join(names)}, got {self.monitor!r}"
                )

    def validate(self, embedder: Embedder) -> dict[str, float]:
        """Score the validation part by all its labels."""
        return self._score(embedder, self.validation, None)

    def test(self, embedder: Embedder) -> dict[str, dict[str, float]]:
        """Score each test part by all its labels: ``{"test digit": {"R@1": …}}``."""
        rows: dict[str, dict[str, float]] = {}
        for part, (queries, gallery) in self.tests.items():
            for name, value in self._score(embedder, queries, gallery).items():
                view, metric = name.split("/", 1)
                rows.setdefault(f"{part} {view}", {})[metric] = value
        return rows

    def _check(self) -> None:
        options = self.options
        if options.loss in PROXY_LOSSES and options.miner != "none":
            raise ValueError(f"--miner is for pair losses; {options.loss} is a proxy loss")
        if options.loss in PROXY_LOSSES and options.memory:
            raise ValueError(f"--memory is for pair losses; {options.loss} is a proxy loss")
        if not 0 <= options.validation < 1:
            raise ValueError(f"--validation must be from 0 to below 1, got {options.validation}")
        if options.patience is not None and options.validation == 0:
            raise ValueError("--patience needs --validation, a held-out share of the training rows")
        if options.monitor is not None and options.patience is None:
            raise ValueError("--monitor needs --patience")
        if options.data in data.IMAGE_FILES and options.train_classes:
            raise ValueError(
                "--train-classes is for digits, mnist and omniglot: half of the classes train"
            )
        for name in ("augmentation", "workers", "on_bad_image"):
            if options.data not in data.IMAGE_FILES and getattr(options, name) is not None:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} is for image files; {options.data} lies in memory")
        for name in ("lr", "proxies_lr_factor", "steps", "dim", "evaluate_every"):
            if not getattr(options, name) > 0:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} must be positive, got {getattr(options, name)}")

    def _load(self) -> tuple[Any, Any, dict[str, Any]]:
        """Read the training and validation rows, and the queries and the gallery of each test part."""
        options = self.options
        settings = self._reading()

        def read(split: str) -> Any:
            return data.load(options.data, data_dir=options.data_dir, split=split, **settings)

        def scored(part: data.Dataset) -> data.Dataset:
            return data.without_bad_images(part) if options.on_bad_image == "skip" else part

        train = read("train")
        if options.data == "inshop":
            tests: dict[str, Any] = {"test": (scored(read("query")), scored(read("gallery")))}
        else:
            tests = {"test": (scored(read("test")), None)}
        if options.labels is not None and options.labels not in train.views:
            raise ValueError(
                f"--labels must be one of {', '.join(train.views)}, got {options.labels!r}"
            )
        if options.train_classes:
            train, tests = _split_classes(train, tests["test"][0], options.train_classes)
        held_out = np.zeros(len(train), bool)
        order = np.random.default_rng(options.seed).permutation(len(train))
        held_out[order[: round(options.validation * len(train))]] = True
        validation = scored(train.select(held_out)) if held_out.any() else None
        return train.select(~held_out), validation, tests

    def _reading(self) -> dict[str, Any]:
        """Return what the data set's reader is told."""
        options = self.options
        size = {} if options.image_size is None else {"size": options.image_size}
        if options.data in data.IMAGE_FILES:
            crops = data.mlrc if options.augmentation == "mlrc" else data.conventional
            return {"transform": crops(**size)}
        if options.data == "omniglot":
            return {"image_size": options.image_size or 28}
        return {}

    def _model(self) -> Any:
        from jdml import models

        return models.create(self.options.model, dim=self.options.dim)

    def _objective(self) -> Any:
        from jdml import losses, objectives, ops

        options = self.options
        loss_fn = getattr(losses, f"{options.loss}_loss")
        settings = parse_settings(options.loss_setting, "--loss-setting")
        _check_settings(loss_fn, settings)
        settings["normalize"] = ops.sphere if options.normalize == "sphere" else None
        if options.loss in PROXY_LOSSES:
            return objectives.proxy(
                loss_fn, self.train.num_classes, options.dim, options.proxies_per_class, **settings
            )
        assert options.loss in PAIR_LOSSES
        miner = build_miner(options.miner, options.dim)
        objective = objectives.pair(loss_fn, mine=miner, **settings)
        if options.memory:
            objective = objectives.with_memory(objective, options.memory, options.dim)
        return objective

    def _optimizer(self) -> Any:
        from jdml.optim import partition_by_role

        options = self.options
        transforms = {
            "model": _transform(options.optimizer, options.lr, options.weight_decay),
            "proxies": _transform(options.optimizer, options.lr * options.proxies_lr_factor, 0.0),
        }
        return partition_by_role(transforms, lambda params: {role: role for role in params})

    def _sampler(self, classes: int, samples: int | None) -> Any:
        options = self.options
        sampler: data.EpochSampler
        if samples is None:
            sampler = data.RandomBatchSampler(len(self.train), classes, seed=options.seed)
        else:
            sampler = data.ClassBatchSampler(self.train.labels, classes, samples, options.seed)
        if options.data not in data.IMAGE_FILES:
            return sampler
        return data.ImageBatches(
            self.train,
            sampler,
            seed=options.seed,
            augment=options.augmentation != "none",
            workers=options.workers,
            on_bad_image=options.on_bad_image or "stop",
        )

    def _score(self, embedder: Any, queries: Any, gallery: Any) -> dict[str, float]:
        from jdml.ops import sphere

        return score(
            embedder,
            queries,
            gallery,
            normalize=sphere if self.options.normalize == "sphere" else None,
            recall_at=recall_ranks(self.options.data),
        )


# What every loss takes, and so is no setting of one loss.
SHARED = {
    "positive",
    "references",
    "reference_labels",
    "reference_where",
    "self_index",
    "mine",
    "key",
    "normalize",
    "where",
    "weights",
    "reduce_fn",
}


def as_table(rows: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[Any]]]:
    """Turn ``{row: {metric: value}}`` into a table's columns and rows."""
    metrics = next(iter(rows.values()))
    return ["scored on", *metrics], [[name, *row.values()] for name, row in rows.items()]


def _split_classes(train: Any, test: Any, classes: tuple[int, ...]) -> tuple[Any, dict[str, Any]]:
    """Keep the training rows of some classes; part the test rows into those classes and the others."""
    missing = sorted(set(classes) - set(train.labels.tolist()))
    if missing:
        raise ValueError(
            f"--train-classes must be classes of the training part, 0 to {train.num_classes - 1}; "
            f"got {missing[0]}"
        )
    seen = np.isin(test.labels, classes)
    parts = {"seen": seen, "unseen": ~seen}
    tests = {name: (test.select(rows), None) for name, rows in parts.items() if rows.any()}
    return train.select(np.isin(train.labels, classes)), tests


def _check_settings(loss_fn: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not the loss's own hyper-parameters."""
    import inspect

    parameters = inspect.signature(loss_fn).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in SHARED]
    for name in settings:
        if name not in own:
            raise ValueError(
                f"--loss-setting: {loss_fn.__name__} has no setting {name!r}; it has {', '.join(own) or 'none'}"
            )


def _transform(name: str, lr: float, weight_decay: float) -> Any:
    import optax

    if name == "adamw":
        return optax.adamw(lr, weight_decay=weight_decay)
    rule = optax.adam(lr) if name == "adam" else optax.sgd(lr, momentum=0.9)
    return optax.chain(optax.add_decayed_weights(weight_decay), rule) if weight_decay else rule
