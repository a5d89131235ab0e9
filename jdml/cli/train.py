"""``jdml train``: train a model with any objective, with checkpoints, and score it on the test part."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from jdml.cli.inputs import data_checksum, file_digest
from jdml.cli.job import Job
from jdml.cli.names import (
    Loss,
)

# Options that do not change what is computed, and so may differ when a run is resumed.
NOT_CONFIG = ("data_dir", "on_bad_image", "out", "quiet", "tensorboard", "workers")


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
    weights: Path | None = None
    """Pretrained weights of a resnet18 or resnet50, from jdml weights convert; images then get ImageNet's mean and
    deviation. Default: random ones, which take many images to learn from photographs."""
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
            pretrained=job.pretrained(),
            evaluate=job.validate if job.validation is not None else None,
            evaluate_every=self.evaluate_every,
            monitor=job.monitor,
            patience=self.patience,
            out_dir=self.out,
            checkpoint_every=self.checkpoint_every,
            progress=not self.quiet,
            tensorboard=self.tensorboard,
            config={**self.config(), "data_checksum": data_checksum(job.train)},
            preprocess=job.preprocess,
        )
        metrics = job.test(result.embedder)
        print_table(self.title(), *as_table(metrics))
        if self.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(self.out / "metrics.json", {"step": step, **metrics})

    def config(self) -> dict[str, Any]:
        """Return what defines the run: the options that change what is computed."""
        settings = {k: v for k, v in asdict(self).items() if k not in NOT_CONFIG}
        settings["weights"] = None if self.weights is None else file_digest(self.weights)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}

    def title(self) -> str:
        """Return one line that names the run."""
        miner = "" if self.miner == "none" else f" + {self.miner}"
        return f"{self.data}: {self.loss}{miner}, {self.dim}-D, seed {self.seed}"


def as_table(rows: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[Any]]]:
    """Turn ``{row: {metric: value}}`` into a table's columns and rows."""
    metrics = next(iter(rows.values()))
    return ["scored on", *metrics], [[name, *row.values()] for name, row in rows.items()]
