"""``jdml benchmark``: a method, a data set, a protocol; the paper's row beside ours."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jdml.cli.inputs import data_checksum, file_digest, load_split
from jdml.cli.names import parse_batch
from jdml.cli.papers import printed

EVERY = {"sop": 250, "inshop": 250}
MLRC_EVALUATIONS = 400
DRY_CLASSES = 8
DRY_IMAGES, DRY_TEST_IMAGES = 8, 2
# Options that do not change what is computed, and so may differ when a run is resumed.
NOT_CONFIG = ("data_dir", "on_bad_image", "out", "quiet", "workers", "worker_kind", "weights")


@dataclass(frozen=True)
class Benchmark:
    """Train a method by its paper's recipe and score it on classes that it has not seen.

    conventional: one model on all training classes, R@k on the test classes. mlrc: four models, each on three quarters
    of the training classes and stopped by the fourth; scored apart and with their embeddings side by side. The test
    classes choose nothing.

    With --out, a killed benchmark goes on where it was when the same command is given again.

    An example: potential fields on CUB with a ResNet-50, and whether the whole path works, in about a minute:

    jdml benchmark --dataset cub --data-dir CUB_200_2011 --method pfml --weights resnet50.safetensors --out runs/pfml

    jdml benchmark --method pfml --dry-run
    """

    method: Literal[
        "ccp",
        "eps",
        "mpa",
        "mpa_dw",
        "mpa_ap",
        "nir",
        "pfml",
        "cpml",
        "contrastive",
        "triplet",
        "multi_similarity",
        "proxy_anchor",
        "soft_triple",
    ] = "pfml"
    """What is trained: a method of this library, or one that its papers compare with."""
    dataset: Literal["cub", "cars", "sop", "inshop", "folder"] = "cub"
    """Data set; folder: any folder of classes, the first half of them for training."""
    data_dir: Path | None = None
    """Folder with the data set's own files."""
    protocol: Literal["conventional", "mlrc"] = "conventional"
    """How models are trained, chosen and scored."""
    backbone: Literal["resnet18", "resnet50", "bn_inception", "efficientnet_lite0", "vit_s16"] = (
        "resnet50"
    )
    """The network."""
    weights: Path | None = None
    """Pretrained weights of the backbone, from jdml weights convert. Default: random ones, which learn little here."""
    input_stats: str | None = None
    """Whose mean and deviation images are given; default the backbone's (vit_s16_dino for DINO's weights)."""
    dim: int | None = None
    """Dimension of the embeddings. Default: the paper's."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the network computes in; parameters stay float32."""
    image_size: int | None = None
    """Height and width of the crops. Default: 224, and 227 with mlrc."""
    batch: str | None = None
    """CLASSESxSAMPLES, such as 8x4, or a number of random samples. Default: the paper's."""
    steps: int | None = None
    """Training steps at most. Default: the paper's epochs (conventional), 400 evaluations (mlrc, which stops after
    60 without improvement)."""
    seed: int = 0
    """Of parameters, batches and augmentation."""
    workers: int | None = None
    """Threads or processes that decode images. Default: one for each core."""
    worker_kind: Literal["thread", "process"] = "thread"
    """What decodes images."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """Whether an image that cannot be read stops the run, or is left out and named: all are read once before training,
    for queries, galleries and validation must be whole."""
    out: Path | None = None
    """Folder of the run: checkpoints, log, metrics.json."""
    dry_run: bool = False
    """A few steps on made-up images of the right size and a few classes: whether the whole path works."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        """Train, score, show both rows, write metrics.json."""
        from jdml.training.checkpoint import write_json

        self._check()
        if self.dry_run:
            with fake_images(self._size()) as folder:
                rows, _ = self._measure(replace(self, dataset="folder", data_dir=folder))
            self._show(rows, {}, ())
        else:
            rows, unlike = self._measure(self)
            self._show(rows, self._printed(), (*unlike, *self._own()))
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(self.out / "metrics.json", {"options": self._options(), **rows})

    def _measure(self, source: "Benchmark") -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
        """Metrics by row, and which counts are not the published ones; the images are those of `source`."""
        from jdml.data.checking import unlike_published
        from jdml.training.protocols import conventional, mlrc

        train, test = read(source, self._crops())
        scored = {"test": test.queries}
        if test.gallery is not None:
            scored = {"query": test.queries, "gallery": test.gallery}
        unlike = unlike_published(source.dataset, {"train": train, **scored})
        for line in unlike:
            print(f"{source.dataset}: {line}", flush=True)
        plan = self._plan(train)
        if self.protocol == "mlrc":
            return mlrc(plan, train, test, self.out), unlike
        return {"ours": conventional(plan, train, test, self.out)}, unlike

    def _plan(self, train: Any) -> Any:
        from jdml import models
        from jdml.data import ImageBatches
        from jdml.recipes import recipe
        from jdml.training.protocols import Plan
        from jdml.training.scoring import ndcg_ranks, recall_ranks

        found = recipe(self.method, self.dataset, protocol=self.protocol, backbone=self.backbone)
        if self.dim is not None:
            found = replace(found, dim=self.dim)
        if self.batch is not None:
            classes, samples = parse_batch(self.batch)
            found = replace(found, batch=classes if samples is None else (classes, samples))
        steps, every = self.steps, EVERY.get(self.dataset, 25)
        if self.dry_run:
            small = (DRY_CLASSES // 4, 4) if isinstance(found.batch, tuple) else DRY_CLASSES
            problems = found.problems
            if problems is not None:
                problems = problems._replace(pool_size=DRY_IMAGES)
            found, every = replace(found, batch=small, problems=problems), 2
            steps = 2 if steps is None else steps
        elif self.protocol == "mlrc" and steps is None:
            steps = MLRC_EVALUATIONS * every

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
        )

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
        options = {k: v for k, v in self._options().items() if k not in NOT_CONFIG}
        weights = None if self.weights is None else file_digest(self.weights)
        images = None if self.dry_run else data_checksum(train)
        return {"benchmark": {**options, "weights": weights, "data_checksum": images}}

    def _options(self) -> dict[str, Any]:
        """All options, JSON-able."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    def _check(self) -> None:
        for name in ("dim", "image_size", "steps", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if not self.dry_run and self.data_dir is None:
            raise ValueError(
                f"--dataset {self.dataset} needs --data-dir, the folder with its files"
            )
        if self.weights is not None and not self.weights.is_file():
            raise ValueError(f"--weights must be a file, got {self.weights}")

    def _crops(self) -> Any:
        from jdml import data

        return (data.mlrc if self.protocol == "mlrc" else data.conventional)(self._size())

    def _printed(self) -> Mapping[str, float]:
        """What the paper reports."""
        dino = self.input_stats == "vit_s16_dino"
        backbone = "vit_s16_dino" if dino and self.backbone == "vit_s16" else self.backbone
        return printed(self.protocol, self.method, backbone, self.dataset)

    def _own(self) -> tuple[str, ...]:
        """In what options this run is not the paper's."""
        names = ("dim", "batch", "steps", "image_size")
        own = [(name, getattr(self, name)) for name in names]
        changed = [f"--{n.replace('_', '-')} {value}" for n, value in own if value is not None]
        return (*changed, *(["random weights"] if self.weights is None else []))

    def _show(
        self,
        rows: Mapping[str, Mapping[str, float]],
        paper: Mapping[str, float],
        unlike: tuple[str, ...],
    ) -> None:
        """Print our rows and the paper's, in percent, and in what the two are not alike."""
        from jdml.cli.show import print_table

        first = next(iter(rows.values()))
        names = [name for name in first if name != "queries"]
        table: list[list[Any]] = [
            [row, *(f"{100 * values[name]:.1f}" for name in names)] for row, values in rows.items()
        ]
        if not self.dry_run:
            table.append(
                ["paper", *(f"{paper[name]:.1f}" if name in paper else "–" for name in names)]
            )
        title = f"{self.dataset}, {self.protocol}: {self.method}, {self.backbone}"
        print_table(f"{title}{' (dry run on noise)' if self.dry_run else ''}", ["%", *names], table)
        if paper and unlike:
            print(f"not the paper's task: {'; '.join(unlike)}")


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


@contextmanager
def fake_images(size: int) -> Iterator[Path]:
    """A folder of classes with noise as JPEG files, a little larger than the crops."""
    import tempfile

    from PIL import Image

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for of_class in range(2 * DRY_CLASSES):
            folder = Path(name) / f"class{of_class:02}"
            folder.mkdir()
            colour = rng.integers(0, 256, (1, 1, 3))
            training = of_class < DRY_CLASSES  # the first half
            for number in range(DRY_IMAGES if training else DRY_TEST_IMAGES):
                noise = rng.integers(-40, 40, (size + 24, size + 40, 3))
                pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
        yield Path(name)
