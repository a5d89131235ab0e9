"""``jdml benchmark``: a method, a data set, a protocol; the paper's row beside ours."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml.cli.beside import Rows, called, differences, over, paper_rows, show
from jdml.cli.devices import TOPOLOGY, Machines
from jdml.cli.dry import fake_images, rehearsed
from jdml.cli.inputs import data_checksum, file_digest, load_split
from jdml.cli.names import parse_batch, parse_settings
from jdml.cli.resolve import check_out
from jdml.cli.typed import started

FOLDS = 4
EVERY = {"sop": 250, "inshop": 250}
MLRC_EVALUATIONS = 600
"""150,000 steps where there are many classes: the longest of the tables took 131,000 on average."""
# Options that do not change what is computed, and so may differ when a run is resumed.
NOT_CONFIG = (
    *TOPOLOGY,
    "data_dir",
    "on_bad_image",
    "out",
    "quiet",
    "seeds",
    "workers",
    "worker_kind",
    "weights",
)


@dataclass(frozen=True)
class Benchmark(Machines):
    """Train a method by its paper's recipe and score it on classes that it has not seen.

    conventional: one model on all training classes, R@k on the test classes. mlrc: four models, each on three quarters
    of the training classes and stopped by the fourth; scored apart and with their embeddings side by side. The test
    classes choose nothing.

    With --out, a killed benchmark goes on where it was when the same command is given again. Other losses, miners,
    networks and splits: jdml train.

    An example, potential fields on CUB with a ResNet-50; below, whether the whole path works, in about a minute:

    jdml benchmark --dataset cub --data-dir CUB_200_2011 --method pfml --weights resnet50.safetensors --out runs/pfml
    """

    method: Literal[
        "ccp",
        "contrastive",
        "cpml",
        "eps",
        "eps_margin",
        "eps_triplet",
        "margin",
        "mpa",
        "mpa_ap",
        "mpa_dw",
        "mpa_proxy_anchor",
        "multi_similarity",
        "nir",
        "nir_baseline",
        "pfml",
        "proxy_anchor",
        "proxy_nca",
        "soft_triple",
        "triplet",
    ] = "pfml"
    """What is trained: a method of this library, or one that its papers compare with."""
    method_setting: tuple[str, ...] = ()
    """The method's own settings in the place of the paper's, as name=value. ccp: loss=multi_similarity preset=released
    pool_size=12 strength=2e-4 in_batch_weight=0.1 restore=False anchor_first=False first=origin single=True. nir:
    loss=soft_triple flow=paper conditioning=start weight=0.01 shape=softplus of_mean=True self_regularization=both
    warmup=0 pooling=average+max. nir_baseline, the same without the flow: loss=, weight=, warmup=, pooling=. pfml:
    preset=paper clip=vector."""
    dataset: Literal["cars", "cub", "folder", "inshop", "sop"] = "cub"
    """Data set; folder: any folder of classes, the first half of them for training."""
    data_dir: Path | None = None
    """Folder with the data set's own files."""
    protocol: Literal["conventional", "mlrc"] = "conventional"
    """How models are trained, chosen and scored."""
    backbone: Literal["bn_inception", "efficientnet_lite0", "resnet18", "resnet50", "vit_s16"] = (
        "resnet50"
    )
    """The network."""
    weights: Path | None = None
    """Pretrained weights of the backbone, from jdml weights convert. Default: random ones, which learn little here."""
    input_stats: str | None = None
    """Whose mean and deviation images are given; default the backbone's (vit_s16_dino for DINO's weights)."""
    dim: int | None = None
    """Dimension of the embeddings. Default: the paper's."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """What the network computes in; parameters stay float32."""
    image_size: int | None = None
    """Height and width of the crops. Default: 224, and 227 with mlrc."""
    batch: str | None = None
    """CLASSESxSAMPLES, such as 8x4, or a number of random samples. Default: the paper's."""
    steps: int | None = None
    """Training steps at most. Default: the paper's epochs (conventional), 600 evaluations (mlrc, which stops after
    60 without improvement)."""
    lr: float | None = None
    """Learning rate of the network. Default: the paper's."""
    loss_setting: tuple[str, ...] = ()
    """The loss's own numbers in the place of the paper's, as name=value: alpha=16 delta=0.2."""
    proxies_per_class: int | None = None
    """Proxies per class of a proxy method; 0 for pfml and cpml: samples alone. Default: the paper's."""
    sampled_classes: int | None = None
    """Classes that a step of a proxy method sees: those of its batch, and others drawn at random. Default: all."""
    label_noise: float = 0.0
    """Share of the training images that get a wrong label, drawn by the seed (conventional protocol)."""
    seed: int = 0
    """Of parameters, batches and augmentation."""
    seeds: int = 1
    """How many runs, from --seed on; the table then shows their mean and standard deviation."""
    workers: int | None = None
    """Threads or processes that decode images. Default: one for each core."""
    worker_kind: Literal["process", "thread"] = "thread"
    """What decodes images."""
    on_bad_image: Literal["skip", "stop"] = "stop"
    """Whether an image that cannot be read stops the run, or is left out and named: all are read once before training,
    for queries, galleries and validation must be whole."""
    out: Path | None = None
    """Folder of the run: checkpoints, log, metrics.json."""
    dry_run: bool = False
    """A few steps on made-up images of the right size and a few classes: whether the whole path works."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> None:
        """Train, score, show both rows, write metrics.json."""
        from jdml.training.checkpoint import write_json
        from jdml.training.placement import writes

        self.join()
        self._check()
        if self.dry_run:
            with fake_images(self._size()) as folder:
                source = replace(self, dataset="folder", data_dir=folder)
                found, unlike = self._measure_all(source)
        else:
            found, unlike = self._measure_all(self)
        if not writes():
            return
        seeds = "" if self.seeds == 1 else f", {self.seeds} seeds"
        title = f"{self.dataset}, {self.protocol}: {self.method}, {self.backbone}{seeds}"
        if self.dry_run:
            show(f"{title} (dry run on noise)", found, {}, (), {})
        else:
            differs = (*unlike, *differences(self))
            show(title, found, paper_rows(self, self._recipe), differs, called(self))
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            rows = found[0] if self.seeds == 1 else {**over(found, np.mean), "seeds": found}
            write_json(self.out / "metrics.json", {"options": self._options(), **rows})
            models = _models(self.out)
            if not self.dry_run and models:
                where = f"{self.dataset}:{self.data_dir}"
                print(f"next: jdml embed {models[0]} {where} --split test --out embeddings.npz")
                print(f"      jdml search {models[0]} PHOTO.jpg --gallery {where} -k 10")

    def _measure_all(self, source: "Benchmark") -> tuple[list[Rows], tuple[str, ...]]:
        """Metrics by row of each seed, and which counts are not the published ones."""
        data, unlike = self._read(source)
        found = []
        for number in range(self.seeds):
            apart = FOLDS if self.protocol == "mlrc" else 1  # whose models have seeds in a row
            out = self.out
            if out is not None and self.seeds > 1:
                out = out / f"seed{self.seed + apart * number}"
            one = replace(self, seed=self.seed + apart * number, out=out)
            found.append(one._measure(*data))
        return found, unlike

    def _read(self, source: "Benchmark") -> tuple[tuple[Any, Any], tuple[str, ...]]:
        """Training and test images, and which counts are not the published ones."""
        from jdml.data.checking import unlike_published

        train, test = read(source, self._crops())
        scored = {"test": test.queries}
        if test.gallery is not None:
            scored = {"query": test.queries, "gallery": test.gallery}
        for name, part in {"train": train, **scored}.items():
            if len(np.unique(part.labels)) < 2:
                raise ValueError(f"{source.dataset}: the split {name!r} has fewer than two classes")
        unlike = unlike_published(source.dataset, {"train": train, **scored})
        for line in unlike:
            print(f"{source.dataset}: {line}", flush=True)
        return (train, test), unlike

    def _measure(self, train: Any, test: Any) -> Rows:
        """Metrics by row."""
        from jdml import data
        from jdml.training.protocols import conventional, mlrc

        plan = self._plan(train)
        if self.protocol == "mlrc":
            return mlrc(plan, train, test, self.out)
        if self.label_noise:
            labels = data.corrupt_labels(train.labels, self.label_noise, self.seed)
            train = replace(train, labels=labels)
        return {"ours": conventional(plan, train, test, self.out)}

    def _plan(self, train: Any) -> Any:
        from jdml import models
        from jdml.data import ImageBatches
        from jdml.training.placement import writes
        from jdml.training.protocols import Plan
        from jdml.training.scoring import ndcg_ranks, recall_ranks

        found = self._recipe
        own = self._own_settings()
        if own:
            found.objective(2, found.dim, **own)  # tells wrong settings before any work
            found = replace(found, objective=partial(found.objective, **own))
        if self.batch is not None:
            classes, samples = parse_batch(self.batch)
            found = replace(found, batch=classes if samples is None else (classes, samples))
        steps, every = self.steps, EVERY.get(self.dataset, 25)
        if self.dry_run:
            found, every = rehearsed(found), 2
            steps = 2 if steps is None else steps
        elif self.protocol == "mlrc" and steps is None:
            steps = MLRC_EVALUATIONS * every

        rows = found.batch if isinstance(found.batch, int) else int(np.prod(found.batch))
        mesh, where = self.mesh(rows)
        for line in where if writes() else ():
            print(line, flush=True)

        def batches(dataset: Any, sampler: Any) -> Any:
            return ImageBatches(
                dataset,
                sampler,
                seed=self.seed,
                workers=self.workers,
                worker_kind=self.worker_kind,
                on_bad_image=self.on_bad_image,
            )

        return Plan(
            recipe=found,
            model=self._model(found),
            steps=steps,
            evaluate_every=every,
            seed=self.seed,
            preprocess=models.normalizer(self.input_stats or self.backbone),
            pretrained=None if self.weights is None else partial(models.load_weights, self.weights),
            batches=batches,
            recall_at=recall_ranks(self.dataset),
            ndcg_at=ndcg_ranks(self.dataset),
            config=self._config(train),
            progress=not self.quiet,
            mesh=mesh,
            micro_batch=self.micro_batch,
        )

    @cached_property
    def _recipe(self) -> Any:
        """The recipe with what was typed about the method."""
        from jdml.recipes import recipe

        own = parse_settings(self.method_setting, "--method-setting", words=True)
        try:
            found = recipe(
                self.method, self.dataset, protocol=self.protocol, backbone=self.backbone, **own
            )
        except ValueError as error:
            raise ValueError(f"--method-setting: {error}") from error
        changed = sorted({"alpha", "delta"} & set(self._own_settings()))
        if found.max_proxy_norm is not None and changed:
            raise ValueError(
                f"--method-setting clip=vector cuts at the force of the preset's alpha and delta: it does not go with "
                f"--loss-setting {'= '.join(changed)}="
            )
        if self.dim is not None:
            found = replace(found, dim=self.dim)
        return found if self.lr is None else replace(found, rate=self.lr)

    def _own_settings(self) -> dict[str, Any]:
        """The loss's numbers that were typed."""
        own = parse_settings(self.loss_setting, "--loss-setting")
        if self.proxies_per_class is not None:
            own["proxies_per_class"] = self.proxies_per_class
        if self.sampled_classes is not None:
            own["sampled_classes"] = self.sampled_classes
        return own

    def _model(self, recipe: Any) -> Any:
        import jax.numpy as jnp

        from jdml import models

        settings: dict[str, Any] = {"dtype": jnp.dtype(self.dtype).type}
        if self.backbone != "vit_s16":
            settings |= {"pooling": recipe.pooling, "freeze_batch_norm": recipe.freeze_batch_norm}
        return models.create(self.backbone, dim=recipe.dim, **settings)

    def _size(self) -> int:
        if self.image_size is not None:
            return self.image_size
        return 227 if self.protocol == "mlrc" else 224

    def _config(self, train: Any) -> dict[str, Any]:
        """What must agree for a run to go on: all that changes what is computed."""
        from jdml.recipes.papers import PFML

        options = {k: v for k, v in self._options().items() if k not in NOT_CONFIG}
        for name in ("sampled_classes", "method_setting"):
            if not self.__dict__[name]:  # runs from before there was such an option go on
                del options[name]
        weights = None if self.weights is None else file_digest(self.weights)
        images = None if self.dry_run else data_checksum(train)
        rows = {} if self.dry_run else paper_rows(self, self._recipe)
        paper = dict(next(iter(rows.values()), {}))
        told = {**started("jdml benchmark", self), "paper": paper}
        if self.method == "pfml":
            own = parse_settings(self.method_setting, "--method-setting", words=True)
            told["alpha"] = PFML[own.get("preset", "found")]["alpha"]
        return {
            "benchmark": {**options, "weights": weights, "data_checksum": images},
            "started": told,
        }

    def _options(self) -> dict[str, Any]:
        """All options, JSON-able."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    def _check(self) -> None:
        for name in ("dim", "image_size", "steps", "workers", "seeds", "sampled_classes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"--lr must be positive, got {self.lr}")
        if not 0 <= self.label_noise < 1:
            raise ValueError(f"--label-noise must be from 0 to below 1, got {self.label_noise}")
        if self.label_noise and (self.protocol == "mlrc" or self.method == "ccp"):
            raise ValueError(
                "--label-noise is for the conventional protocol, and not for ccp: both choose by training classes"
            )
        self._check_proxies()
        if self.out is not None:
            check_out(self.out)
        if not self.dry_run and self.data_dir is None:
            raise ValueError(
                f"--dataset {self.dataset} needs --data-dir, the folder with its files"
            )
        if self.weights is not None and not self.weights.is_file():
            raise ValueError(f"--weights must be a file, got {self.weights}")

    def _check_proxies(self) -> None:
        from jdml.recipes import OF_PAIRS

        least, each = 0 if self.method in ("pfml", "cpml") else 1, self.proxies_per_class
        of_pairs = self.method in OF_PAIRS
        if each is not None and each < least:
            raise ValueError(f"--proxies-per-class must be at least {least}, got {each}")
        if each is not None and of_pairs and self.method != "ccp":
            raise ValueError(
                f"--proxies-per-class is for proxy methods; {self.method} is one of pairs"
            )
        if self.sampled_classes is not None and of_pairs:
            raise ValueError(
                f"--sampled-classes is for proxy methods; {self.method} compares with samples"
            )

    def _crops(self) -> Any:
        from jdml import data

        return (data.mlrc if self.protocol == "mlrc" else data.conventional)(self._size())


def _models(out: Path) -> list[Path]:
    """The runs in a folder that have a model, the folder itself first."""
    return [file.parent for file in sorted(out.glob("**/model.safetensors"))]


def read(source: Benchmark, crops: Any) -> tuple[Any, Any]:
    """The training classes, and what is searched for what."""
    from jdml import data
    from jdml.training.protocols import Retrieval

    def load(split: str) -> Any:
        part = load_split(source.dataset, source.data_dir, split, transform=crops)
        return data.without_bad_images(part) if source.on_bad_image == "skip" else part

    if source.dataset == "inshop":
        return load("train"), Retrieval(load("query"), load("gallery"))
    return load("train"), Retrieval(load("test"))
