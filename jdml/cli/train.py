"""``jdml train``: train a model with any objective, with checkpoints, and score it on the test part."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from jdml.cli.devices import TOPOLOGY, Machines
from jdml.cli.names import Loss, Network, Pooling, parse_batch
from jdml.cli.typed import started

# Options that do not change what is computed, and so may differ when a run is resumed.
NOT_CONFIG = (*TOPOLOGY, "data_dir", "on_bad_image", "out", "quiet", "tensorboard", "workers")
DATA = Literal["cars", "cub", "digits", "folder", "inshop", "mnist", "omniglot", "sop"]


@dataclass(frozen=True)
class Train(Machines):
    """Train embeddings of a data set and score them on its test part.

    With --out, a killed run goes on where it was when the same command is given again, and ends with
    the same numbers; with more --steps it goes on further. The test part is looked at once, at the end; --validation
    holds out a part of the training rows for evaluations on the way and for early stopping. What comes out is for
    jdml embed, search and export. A method by its paper's recipe, on its paper's split: jdml benchmark.

    An example with Omniglot: multi-similarity loss, 4 alphabets of 40 samples a batch.

    jdml train --data omniglot --data-dir DIR --model small --dim 128 --loss multi_similarity
    --loss-setting beta=40 --batch 4x40 --lr 5e-4 --steps 1200 --out runs/ms

    An example with even and odd digits, which need no files: easy positive sampling keeps the digits apart.

    jdml train --labels parity --miner eps+semi_hard --dim 2 --normalize none
    """

    data: DATA | None = None
    """Data set. Default: what --data-dir holds, else digits (1,797 real 8x8 images, which need no files). folder: a
    folder of images for each class; or train/, val/ and test/ of such; or a .csv file of file,label[,split]."""
    data_dir: Path | None = None
    """Folder with the data set's own files, as the original comes (jdml data check NAME DIR looks at it)."""
    split: Literal["classes", "images", "none"] | None = None
    """What of image files is scored. classes: half of the classes; images: a fifth of each class's images, both drawn
    by --seed; none: nothing, all train, for a final model. Default: as the data set comes; of a folder of classes the
    second half of them, by their names."""
    test_share: float | None = None
    """How much --split scores. Default: 0.5 of the classes, 0.2 of the images."""
    classes_file: Path | None = None
    """A text file with the names of the classes that train, one a line; all others are scored."""
    image_size: int | None = None
    """Height and width of the images, in pixels: of Omniglot's (default: 28), or of the crops of image files
    (default: the augmentation's)."""
    augmentation: Literal["conventional", "mlrc", "none"] | None = None
    """How image files are cropped in training. conventional (the default): 224 pixels; mlrc: 227, of images of short
    side 256; none: the centre, 224."""
    workers: int | None = None
    """Threads that decode image files. Default: one for each core."""
    on_bad_image: Literal["skip", "stop"] | None = None
    """What a damaged image file does: stop the run (the default), or be left out and counted. With skip, the images
    that are scored are looked through before the first step."""
    labels: str | None = None
    """The labels to train on: digit or parity (digits, mnist); alphabet or letter (omniglot); class or super_class
    (sop). Default: the first. The table scores all of them."""
    train_classes: tuple[int, ...] = ()
    """Train on these classes only (numbers of the data set's first labels, such as digits 0 1 2 3 4 5); the table then
    scores seen and unseen classes apart. Default: all."""
    label_noise: float = 0.0
    """Share of the training rows that get a wrong label, drawn by --seed."""
    validation: float = 0.0
    """Share of the training rows held out for evaluation during training, 0 to below 1."""

    method: Literal["ccp", "nir", "plain"] = "plain"
    """plain: the loss alone. nir: non-isotropy regularization, a flow around every proxy of a proxy loss. ccp: a pair
    loss between samples and proxies, chosen anew for one problem after another; needs --validation."""
    method_setting: tuple[str, ...] = ()
    """The method's own numbers, as name=value. nir: weight=0.01 warmup=50 flow_lr=5e-4. ccp: pool_size=12
    strength=2e-4 patience=3 in_batch_weight=0 restore=False anchor_first=True first=origin."""
    loss: Loss | None = None
    """The loss. Proxy losses learn one vector or more per class. Default: triplet (nir: proxy_anchor, ccp:
    contrastive)."""
    loss_setting: tuple[str, ...] = ()
    """The loss's own numbers, as name=value: margin=0.2 squared=True."""
    learn_beta: Literal["class", "shared"] | None = None
    """The margin loss's boundary beta is learned, one for each class or one for all, from the loss's (1.2) on. Default:
    it stays where it is."""
    miner: str = "none"
    """Which pairs a pair loss sees: none, or names joined by +, each with its settings after a colon:
    eps+semi_hard, easy_positive+semi_hard_negative:margin=0.3, random_positive, hard_negative,
    distance_weighted, multi_similarity, multi_similarity_negative, ..."""
    memory: int = 0
    """Also compare a pair loss's batch with this many remembered embeddings (cross-batch memory)."""
    proxies_per_class: int | None = None
    """Proxies per class of a proxy loss (default 1, potential_field 3; 0: a field of samples alone) or of ccp (default
    8)."""

    sampled_classes: int | None = None
    """For very many classes: a step of a proxy loss sees the classes of its batch and others, drawn at random, so many
    in all. Default: all classes."""

    model: Network | None = None
    """eps: two convolutions, made for 2-D pictures of digits. small: four convolutions, for images of any size.
    resnet20v2: nine residual blocks. The others are for photographs. Default: that of --weights; without, eps for
    digits, mnist and omniglot, small for image files."""
    weights: Path | None = None
    """Pretrained weights, from jdml weights convert; images are then normalized as the weights expect. Default: random
    ones, which take many images to learn from photographs."""
    input_stats: Literal["vit_s16_dino"] | None = None
    """How images are normalized, where the weights are not the usual ones: DINO's of a vit_s16."""
    dim: int = 64
    """Dimension of the embeddings."""
    pooling: Pooling | None = None
    """How the network pools over space. Default: average."""
    freeze_batch_norm: bool = False
    """Batch norm keeps its running statistics, as pretrained weights bring them; --micro-batch needs it."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """What the network computes in; parameters stay float32."""
    normalize: Literal["ball", "none", "sphere"] | None = None
    """sphere (the default): embeddings are scaled to length 1, in the loss and in the scores. ball (ccp's default):
    those longer than 1."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """sgd has momentum 0.9."""
    lr: float = 1e-3
    """Learning rate of the model."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How learning rates go down to 0 over --steps."""
    warmup: int = 0
    """First steps, in which learning rates go up from 0."""
    proxies_lr_factor: float | None = None
    """Proxies learn this many times as fast as the model. Default: 100."""
    proxies_start: Literal["random", "samples"] | None = None
    """Where proxies begin: on the sphere at random, or on samples of their class. Default: samples with
    potential_field, whose forces fade with distance, and random with other losses."""
    beta_lr_factor: float | None = None
    """A learned boundary moves this many times as fast as the model. Default: 1."""
    weight_decay: float = 0.0
    """Weight decay of the model: decoupled with adamw, added to the gradient with adam and sgd."""

    batch: str = "64"
    """CLASSESxSAMPLES, such as 4x40, or a number of random samples."""
    steps: int = 1000
    """Training steps, one batch each."""
    evaluate_every: int | None = None
    """Steps between evaluations on the validation part. Default: 100."""
    patience: int | None = None
    """Stop after this many evaluations without improvement, and score the best parameters. Needs --validation.
    Default: train all steps and score the last."""
    monitor: str | None = None
    """What improvement is measured by, LABELS/METRIC. Default: MAP@R of the training labels, such as digit/MAP@R."""
    seed: int = 0
    """Of the initial parameters, the batches, the miners, --split and the held-out rows."""

    out: Path | None = None
    """Folder of the run: config.json, log.jsonl, checkpoints, metrics.json, model.safetensors."""
    checkpoint_every: int | None = None
    """Steps between checkpoints. Default: --evaluate-every."""
    log_every: int | None = None
    """Steps between lines of the log. Default: 50."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the folder."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> None:
        """Train, score, show, write metrics.json."""
        from jdml.cli.job import Job
        from jdml.cli.resolve import resolve
        from jdml.cli.show import print_table
        from jdml.training import fit
        from jdml.training.checkpoint import write_json
        from jdml.training.placement import class_shards, writes

        self.join()
        options = resolve(self)
        job = Job(options)
        classes, samples = parse_batch(options.batch)
        mesh, where = self.mesh(classes * (samples or 1))
        for line in (*job.summary(), *where) if writes() else ():
            print(line, flush=True)
        result = fit(
            job.model,
            job.objective,
            job.optimizer,
            job.train,
            job.sampler,
            steps=options.steps,
            seed=options.seed,
            pretrained=job.pretrained(),
            start=job.start(),
            evaluate=job.validate if job.validation is not None else None,
            evaluate_every=options.evaluate_every or 100,
            monitor=job.monitor,
            patience=options.patience,
            hook=job.hook,
            out_dir=options.out,
            longer=True,
            checkpoint_every=options.checkpoint_every,
            log_every=options.log_every or 50,
            progress=not options.quiet,
            tensorboard=options.tensorboard,
            config={
                **self.config(),
                "data_checksum": job.checksum,
                "started": started("jdml train", self),
            },
            preprocess=job.preprocess,
            normalize=job.normalize,
            mesh=mesh,
            shard=class_shards(mesh, job.objective),
            micro_batch=options.micro_batch,
            skip_nonfinite=job.settings.get("skip_nonfinite"),
        )
        metrics = job.test(result.embedder)
        if not writes():
            return
        if metrics:
            print_table(options.title(), *as_table(metrics))
        else:
            print(f"{options.title()}: trained; --split none leaves nothing to score")
        if options.out is not None:
            step = int(result.state.step) if result.best is None else result.best.step
            write_json(options.out / "metrics.json", {"step": step, **metrics})
        for line in job.next_steps():
            print(line)

    def config(self) -> dict[str, Any]:
        """Return what defines the run: the options that change what is computed, resolved."""
        from jdml.cli.inputs import file_digest
        from jdml.cli.resolve import resolve

        resolved = resolve(self)
        settings = {k: v for k, v in asdict(resolved).items() if k not in NOT_CONFIG}
        for name in ("freeze_batch_norm", "sampled_classes", "learn_beta", "beta_lr_factor"):
            if not settings[name]:  # runs from before there was such an option go on
                del settings[name]
        for name in ("weights", "classes_file"):
            file = getattr(resolved, name)
            settings[name] = None if file is None else file_digest(file)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}

    def title(self) -> str:
        """Return one line that names the run."""
        miner = "" if self.miner == "none" else f" + {self.miner}"
        method = "" if self.method == "plain" else f"{self.method}, "
        return f"{self.data}: {method}{self.loss}{miner}, {self.dim}-D, seed {self.seed}"


def as_table(rows: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[Any]]]:
    """Turn ``{row: {metric: value}}`` into a table's columns and rows."""
    metrics = next(iter(rows.values()))
    return ["scored on", *metrics], [[name, *row.values()] for name, row in rows.items()]
