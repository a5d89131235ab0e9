"""What the options of ``jdml train`` stand for."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jdml import data
from jdml.cli.inputs import data_checksum
from jdml.cli.methods import build_hook, build_method, method_settings
from jdml.cli.names import (
    MONITORED,
    PROXY_LOSSES,
    PROXY_MONITORS,
    build_miner,
    parse_batch,
    parse_settings,
)
from jdml.cli.reading import read_parts, scored_views
from jdml.training import Embedder, metric_names, recall_ranks, score, start_on_samples

if TYPE_CHECKING:
    from jdml.cli.train import Train


class Job:
    """What the options stand for: data, model, objective, optimizer, sampler; checked before any work.

    Args:
        options: resolved (see :mod:`jdml.cli.resolve`).
    """

    def __init__(self, options: "Train") -> None:
        self.options = options
        self.settings = method_settings(options.method, options.method_setting)
        self.model = self._model()
        self.preprocess = self._preprocess()
        self.normalize = _normalization(str(options.normalize))
        parts = read_parts(options)
        self.train, self.labels, self.validation = parts.train, parts.labels, parts.validation
        self.tests, self.notes = parts.tests, parts.notes
        self.checksum = data_checksum(self.train)
        if options.memory > len(self.train):
            raise ValueError(
                f"--memory must be at most the {len(self.train)} images that train, got {options.memory}"
            )
        self.objective = self._objective()
        self.optimizer = self._optimizer()
        self.sampler = self._sampler()
        self.monitor = self._monitor()
        self.hook = build_hook(self) if options.method == "ccp" else None

    def pretrained(self) -> Any:
        """Return what the model's fresh variables become; None where they stay."""
        if self.options.weights is None:
            return None
        from jdml import models

        return partial(models.load_weights, self.options.weights)

    def start(self) -> Any:
        """Return what moves proxies to where they begin; None where they stay as they are drawn."""
        if self.options.proxies_start != "samples":
            return None
        return partial(start_on_samples, seed=self.options.seed)

    def validate(self, embedder: Embedder) -> dict[str, float]:
        """Score the validation part by all its labels."""
        return self._score(embedder, self.validation, None)

    def test(self, embedder: Embedder) -> dict[str, dict[str, float]]:
        """Score each test part by all its labels: ``{"test digit": {"R@1": …}}``."""
        rows: dict[str, dict[str, float]] = {}
        for part, (queries, gallery) in self.tests.items():
            told = scored_views(queries) or tuple(queries.views)
            for name, value in self._score(embedder, queries, gallery).items():
                view, metric = name.split("/", 1)
                if view in told:
                    rows.setdefault(f"{part} {view}", {})[metric] = value
        return rows

    def summary(self) -> list[str]:
        """Say what is trained on what, before it begins."""
        images = self.train.images
        first = jax.ShapeDtypeStruct((1, *images.shape[1:]), np.float32)
        shapes = jax.eval_shape(
            partial(self.model.init, train=False),
            jax.random.key(0),
            jax.eval_shape(self.preprocess, first),
        )
        parameters = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes["params"]))
        size = "×".join(map(str, images.shape[1:]))
        per_epoch = self.sampler.batches_per_epoch
        epochs = self.options.steps / per_epoch
        scored = "".join(
            f"; {part} {len(queries):,} of {len(np.unique(queries.labels)):,}"
            for part, (queries, _) in self.tests.items()
        )
        lines = [
            f"{self.options.model}: {parameters:,} parameters, images {size}",
            f"train {len(self.train):,} images of {len(np.unique(self.train.labels)):,} classes{scored}; "
            f"{per_epoch:,} batches of {self.options.batch} an epoch, "
            f"{self.options.steps:,} steps are {epochs:,.1f} epochs",
        ]
        return lines + [f"note: {line}" for line in self.notes]

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
        split = " --split test" if "test" in self.tests else ""
        embed = f"next: jdml embed {options.out} {where}{split} --out embeddings.npz"
        if options.data not in data.IMAGE_FILES:
            return [embed, f"      jdml export {options.out} --out model.stablehlo"]
        return [embed, f"      jdml search {options.out} PHOTO.jpg --gallery {where} -k 10"]

    def _model(self) -> Any:
        import jax.numpy as jnp

        from jdml import models

        options = self.options
        settings: dict[str, Any] = {}
        if options.pooling is not None:
            settings["pooling"] = options.pooling
        if options.freeze_batch_norm:
            settings["freeze_batch_norm"] = True
        if options.dtype != "float32":
            settings["dtype"] = jnp.dtype(options.dtype).type
        try:
            return models.create(str(options.model), dim=options.dim, **settings)
        except TypeError as error:
            if "freeze_batch_norm" in str(error):
                raise ValueError(f"--model {options.model} has no batch norm to freeze") from error
            raise ValueError(
                f"--pooling is not for --model {options.model}, which has its own"
            ) from error

    def _preprocess(self) -> Any:
        from jdml import models
        from jdml.training import standard

        if self.options.weights is None:
            return standard
        return models.normalizer(self.options.input_stats or str(self.options.model))

    def _objective(self) -> Any:
        from jdml import losses, objectives

        options = self.options
        loss_fn = getattr(losses, f"{options.loss}_loss")
        settings = parse_settings(options.loss_setting, "--loss-setting")
        check_settings(loss_fn, settings)
        settings["normalize"] = self.normalize
        if options.sampled_classes is not None:
            settings["sampled_classes"] = options.sampled_classes
        classes, each = self.train.num_classes, options.proxies_per_class
        watched = PROXY_MONITORS.get(str(options.loss)) if each != 0 else None
        if watched and (options.sampled_classes or classes) * (each or 1) <= MONITORED:
            settings["monitor"] = getattr(losses, watched)
        if options.method != "plain":
            return build_method(self, loss_fn, settings)
        if options.loss in PROXY_LOSSES and each != 0:
            return objectives.proxy(loss_fn, classes, options.dim, each or 1, **settings)
        if options.loss in PROXY_LOSSES:
            return objectives.pair(loss_fn, **settings)
        miner = build_miner(options.miner, options.dim)
        learned: dict[str, Any] = {}
        if options.learn_beta is not None:
            start = settings.pop("beta", 1.2)
            learned["beta"] = np.full(classes if options.learn_beta == "class" else (), start)
        objective = objectives.pair(loss_fn, mine=miner, learned=learned, **settings)
        if options.memory:
            objective = objectives.with_memory(objective, options.memory, options.dim)
        return objective

    def _optimizer(self) -> Any:
        import optax

        from jdml.optim import add_anchored_weights, backbone_and_head, partition_by_role

        options = self.options
        own = _transform(options, options.lr, options.weight_decay)
        transforms = {
            "backbone": own,
            "head": own,
            "proxies": _transform(options, options.lr * (options.proxies_lr_factor or 1.0), 0.0),
            "beta": _transform(options, options.lr * (options.beta_lr_factor or 1.0), 0.0),
            "flow": _transform(options, self.settings.get("flow_lr", options.lr), 0.0),
        }
        waiting = {"backbone": self.settings.get("warmup", 0)}
        by_role = partition_by_role(transforms, backbone_and_head, waiting=waiting)
        if options.method != "ccp":
            return by_role
        anchored = add_anchored_weights(
            self.settings["strength"], lambda params: {role: role == "model" for role in params}
        )
        return optax.chain(anchored, by_role)

    def _sampler(self) -> Any:
        options = self.options
        classes, samples = parse_batch(options.batch)
        sampler: data.EpochSampler
        try:
            if samples is None:
                sampler = data.RandomBatchSampler(len(self.train), classes, seed=options.seed)
            else:
                sampler = data.ClassBatchSampler(self.train.labels, classes, samples, options.seed)
        except ValueError as error:
            raise ValueError(f"--batch {options.batch}: {error}") from error
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

    def _monitor(self) -> str | None:
        options = self.options
        if options.patience is None and options.method != "ccp":
            return None
        monitor = options.monitor or f"{self.labels}/MAP@R"
        metrics = metric_names(recall_ranks(str(options.data)))
        names = sorted(f"{view}/{metric}" for view in self.train.views for metric in metrics)
        if monitor not in names:
            raise ValueError(f"--monitor must be one of {', '.join(names)}, got {monitor!r}")
        return monitor

    def _score(self, embedder: Any, queries: Any, gallery: Any) -> dict[str, float]:
        return score(
            embedder,
            queries,
            gallery,
            normalize=self.normalize,
            recall_at=recall_ranks(str(self.options.data)),
        )


# What every loss takes, and so is no setting of one loss.
SHARED = {
    "axis_name",
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


def check_settings(loss_fn: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not the loss's own hyper-parameters."""
    import inspect

    from jdml.cli.messages import nearest

    parameters = inspect.signature(loss_fn).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in SHARED]
    for name in settings:
        if name not in own:
            raise ValueError(
                f"--loss-setting: {loss_fn.__name__} has no setting {name!r}; it has {', '.join(own) or 'none'}"
                f"{nearest(name, own)}"
            )


def _normalization(name: str) -> Any:
    from jdml import ops

    return {"sphere": ops.sphere, "ball": ops.ball, "none": None}[name]


def _transform(options: "Train", rate: float, weight_decay: float) -> Any:
    import optax

    lr = learning_rate(options, rate)
    if options.optimizer == "adamw":
        return optax.adamw(lr, weight_decay=weight_decay)
    rule = optax.adam(lr) if options.optimizer == "adam" else optax.sgd(lr, momentum=0.9)
    return optax.chain(optax.add_decayed_weights(weight_decay), rule) if weight_decay else rule


def learning_rate(options: "Train", rate: float) -> Any:
    """A learning rate by step: up in the warm-up, then constant or down to 0."""
    import optax

    if options.schedule == "constant" and not options.warmup:
        return rate
    left = options.steps - options.warmup
    after = {
        "constant": optax.constant_schedule(rate),
        "cosine": optax.cosine_decay_schedule(rate, left),
        "linear": optax.linear_schedule(rate, 0.0, left),
    }[options.schedule]
    if not options.warmup:
        return after
    up = optax.linear_schedule(rate / options.warmup, rate, max(options.warmup - 1, 1))
    return optax.join_schedules([up, after], [options.warmup])
