"""What the options of ``jdml train`` stand for."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jdml import data
from jdml.cli.inputs import load_split
from jdml.cli.names import (
    PAIR_LOSSES,
    PROXY_LOSSES,
    build_miner,
    parse_batch,
    parse_settings,
)
from jdml.training import Embedder, metric_names, recall_ranks, score

if TYPE_CHECKING:
    from jdml.cli.train import Train

PRETRAINED = ("resnet18", "resnet50")


class Job:
    """What the options stand for: data, model, objective, optimizer, sampler; checked before any work."""

    def __init__(self, options: "Train") -> None:
        self.options = options
        self._check()
        classes, samples = parse_batch(options.batch)
        self.train, self.validation, self.tests = self._load()
        self.labels = options.labels or next(iter(self.train.views))
        self.train = self.train.relabel(self.labels)
        self.model = self._model()
        self.objective = self._objective()
        self.optimizer = self._optimizer()
        self.preprocess = self._preprocess()
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

    def pretrained(self) -> Any:
        """Return what the model's fresh variables become; None where they stay."""
        if self.options.weights is None:
            return None
        from jdml import models

        return partial(models.load_weights, self.options.weights)

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
        if options.weights is not None:
            if options.model not in PRETRAINED:
                raise ValueError(
                    f"--weights are those of a {' or '.join(PRETRAINED)}, got --model {options.model}"
                )
            if not options.weights.is_file():
                raise ValueError(f"--weights must be a file, got {options.weights}")
        if options.image_size is not None:
            if options.data in ("digits", "mnist"):
                raise ValueError(f"--image-size is not for {options.data}, whose images are small")
            if options.image_size < 1:
                raise ValueError(f"--image-size must be at least 1, got {options.image_size}")
        for name in ("lr", "proxies_lr_factor", "steps", "dim", "evaluate_every"):
            if not getattr(options, name) > 0:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} must be positive, got {getattr(options, name)}")

    def _load(self) -> tuple[Any, Any, dict[str, Any]]:
        """Read the training and validation rows, and the queries and the gallery of each test part."""
        options = self.options
        settings = self._reading()

        def read(split: str) -> Any:
            return load_split(options.data, options.data_dir, split, **settings)

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
        validation = scored(train.select(held_out)) if options.validation else None
        if validation is not None:
            _check_validation(validation, options)
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

    def _preprocess(self) -> Any:
        from jdml import models
        from jdml.training import to_float

        pretrained = self.options.weights is not None
        return models.normalizer(self.options.model) if pretrained else to_float

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


def _check_validation(validation: data.Dataset, options: "Train") -> None:
    """Refuse a held-out part in which nothing can be found."""
    labels = validation.views[options.labels or next(iter(validation.views))]
    if len(labels) == 0 or np.unique(labels, return_counts=True)[1].max() < 2:
        raise ValueError(
            f"--validation {options.validation} holds out {len(labels)} images, no two of a class: "
            f"hold out more"
        )


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
