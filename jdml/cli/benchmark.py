"""``jdml benchmark``: a method, a data set, a protocol; the paper's row next to ours."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from jdml.cli.commands import print_table
from jdml.cli.option_groups import (
    DataOptions,
    DeviceOptions,
    FolderOptions,
    ImageOptions,
    WeightOptions,
)
from jdml.cli.options import NO_OPTION, NOT_DEFINING, Part, Typed, defining, empty_part
from jdml.cli.train import provenance
from jdml.cli.train_options import DEFAULT, with_typed
from jdml.cli.training_data import read_files
from jdml.data import IMAGE_FILES, Dataset, ImageBatches, corrupt_labels, without_bad_images
from jdml.data.integrity import count_mismatches
from jdml.data.splits import hold_out
from jdml.distributed import is_main_process
from jdml.ops.checks import at_least, default_of, fraction_below_1
from jdml.recipes import RECIPES, Recipe, recipe
from jdml.recipes.paper_comparison import PaperRow, find_paper_rows, footnotes
from jdml.recipes.papers import Protocol
from jdml.registry import DATASETS, pretrained_networks
from jdml.report import mean_std
from jdml.runs.identity import data_fingerprint
from jdml.runs.run_files import CONFIG, METRICS, is_of_benchmark, read_json, write_json
from jdml.studies.protocols import FOLDS, Retrieval, run_protocol
from jdml.training import RunConfig, train
from jdml.training.train_recipe import make_network

EVERY = {"sop": 250, "inshop": 250}
MLRC_EVALUATIONS = 600
"""150,000 steps where there are many classes: the longest of the tables took 131,000 on average."""


@dataclass(frozen=True)
class TaskOptions:
    """The method, the data set and the protocol."""

    # Choices from the records, which mypy cannot read.
    method: Literal[tuple(sorted(RECIPES))] = "pfml"  # type: ignore[valid-type]
    """A method of this library, or one that its papers compare with."""
    method_setting: Mapping[str, Any] = empty_part()
    """The method's settings, such as preset=tuned (pfml) or preset=released (nir, ccp)."""
    dataset: Literal[tuple(sorted(IMAGE_FILES))] = "cub"  # type: ignore[valid-type]
    """The data set; folder: any folder of classes, trained on the first half of them."""
    protocol: Protocol = default_of(recipe, "protocol")
    """The training, selection and scoring of models."""
    validation: Annotated[float, fraction_below_1] = 0.0
    """Hold out this fraction of the training images, at random, and score on them instead of the test classes: to
    choose settings. NIR's is 0.15."""
    backbone: Literal[tuple(sorted(pretrained_networks()))] = "resnet50"  # type: ignore[valid-type]
    """The network."""
    seeds: Annotated[int, at_least(1), NOT_DEFINING] = 1
    """Number of runs, from --seed on; the table shows their mean and standard deviation."""
    worker_kind: Annotated[Literal["process", "thread"], NOT_DEFINING] = default_of(
        ImageBatches, "worker_kind"
    )
    """Whether threads or processes decode images."""
    dry_run: bool = False
    """Test the command with a few steps on images of noise."""


@dataclass(frozen=True)
class Benchmark:
    """Train a method by its paper's recipe and score it on unseen classes, next to the paper's result.

    The recipe is the paper's, as printed; --method-setting preset=tuned (pfml) and preset=released (nir, ccp) select
    others. Differences from the paper's run are listed below the table.

    Protocols: conventional trains one model on all training classes and measures R@k on the test classes. mlrc trains
    four models, each on three quarters of the training classes with early stopping on the fourth, and scores them
    separately and with concatenated embeddings. ablation (CCP's) trains one model on two thirds, with early stopping on
    the third. Test classes are never used to choose anything.

    With --out, the same command resumes a benchmark that was killed. For other losses, miners, networks and splits see
    jdml train.
    """

    task: TaskOptions = TaskOptions()
    data: ImageOptions = ImageOptions()
    weights: WeightOptions = WeightOptions()
    network: Annotated[Typed, Part(DEFAULT["network"], ("name",), defaults=False)] = empty_part()
    loss: Annotated[Typed, Part(DEFAULT["loss"], ("name", "method"), defaults=False)] = empty_part()
    finetune: Annotated[Typed, Part(DEFAULT["finetune"], defaults=False)] = empty_part()
    batch: Annotated[Typed, Part(DEFAULT["batch"], defaults=False)] = empty_part()
    optimizer: Annotated[Typed, Part(DEFAULT["optimizer"], defaults=False)] = empty_part()
    evaluation: Annotated[Typed, Part(DEFAULT["evaluation"], defaults=False)] = empty_part()
    run: FolderOptions = FolderOptions()
    devices: DeviceOptions = DeviceOptions()
    words: Annotated[tuple[str, ...], NO_OPTION] = ()

    def check(self) -> None:
        """Refuse options that contradict each other, and the folder of another run."""
        task = self.task
        self.run_recipe()  # refuses wrong values
        if self.data.label_noise and (task.protocol != "conventional" or task.method == "ccp"):
            raise ValueError(
                "--label-noise is for the conventional protocol, and not for ccp: both choose by training classes"
            )
        if task.validation and task.protocol != "conventional":
            raise ValueError("--validation needs --protocol conventional: others hold out classes")
        if self.run.out is None:
            return
        files = (self.run.out / name for name in (CONFIG, METRICS))
        config, metrics = (read_json(file, dict, missing={}) for file in files)
        if not (is_of_benchmark(config) if config else not metrics or "options" in metrics):
            raise ValueError(f"--out {self.run.out} holds another run: choose another folder")

    def recipe(self) -> Recipe:
        """Return the paper's recipe with the typed options."""
        task = self.task
        settings: Any = {"protocol": task.protocol, "backbone": task.backbone}
        try:
            base = recipe(task.method, task.dataset, **settings, **task.method_setting)
        except (TypeError, ValueError) as error:
            raise ValueError(f"--method-setting: {error}") from error
        if "pooling" in self.network and base.network.pooling is None:
            raise ValueError(f"--pooling is not for --backbone {task.backbone}, which has its own")
        parts = vars(base).items()
        return Recipe(**{name: with_typed(part, getattr(self, name)) for name, part in parts})

    def run_recipe(self) -> Recipe:
        """Return the recipe with the protocol's evaluations, or with the few steps of a dry run."""
        task, recipe = self.task, self.recipe()
        if task.dry_run:
            rows = {"classes": 2, "samples_per_class": 4} if recipe.batch.classes else {"size": 8}
            steps = self.batch.get("steps", 2)
            return recipe.replace(batch={**rows, "steps": steps}, evaluation={"every": 2})
        every = EVERY.get(task.dataset, 25)
        if "every" not in self.evaluation:
            recipe = recipe.replace(evaluation={"every": every})
        if task.protocol != "conventional" and not {"steps", "epochs"} & self.batch.keys():
            recipe = recipe.replace(batch={"steps": MLRC_EVALUATIONS * every})
        return recipe

    def paper_rows(self) -> list[PaperRow]:
        """Return the papers' rows of such a run."""
        task = self.task
        if task.validation or task.dry_run:
            return []
        dino = task.backbone == "vit_s16" and self.weights.normalization == "vit_s16_dino"
        return find_paper_rows(
            self.recipe(),
            task.method,
            task.dataset,
            protocol=task.protocol,
            backbone="vit_s16_dino" if dino else str(task.backbone),
            label_noise=self.data.label_noise,
            crop=self.data.image_size,
        )

    def options(self) -> dict[str, Any]:
        """Return the options outside the recipe that define the benchmark, as JSON has them."""
        return defining(self.task, self.data, self.weights, self.run)

    def execute(self) -> None:
        """Train, score, print our rows and the papers', write metrics.json."""
        self.devices.join()
        self.check()
        task, out = self.task, self.run.out
        own = contextlib.nullcontext(self.data.data_dir)
        with noise_folder() if task.dry_run else own as folder:
            train, test, mismatches = self._read(folder)
            runs = [run._measure(train, test) for run in self._by_seed()]
        if not is_main_process():
            return
        seeds = "" if task.seeds == 1 else f", {task.seeds} seeds"
        title = f"{task.dataset}, {task.protocol}: {task.method}, {task.backbone}{seeds}"
        if task.validation:
            title = f"{title} (held-out training images)"
        if task.dry_run:
            title = f"{title} (dry run on noise)"
        quarter = task.method == "ccp" and task.protocol == "conventional"
        differs = [
            *mismatches,
            *["a quarter of the training classes only ends problems"] * quarter,
            *["random weights"] * (self.weights.weights is None),
        ]
        names = [n for n in next(iter(runs[0].values())) if n not in ("queries", "step")]
        table = [
            [row, *(mean_std([rows[row][name] for rows in runs]) for name in names)]
            for row in runs[0]
        ]
        paper = self.paper_rows()
        for name, values in (row for each in paper for row in each.rows.items()):
            table.append([name, *(f"{values[n]:.1f}" if n in values else "–" for n in names)])
        print_table(title, ["%", *names], table)  # in percent
        if not task.dry_run:
            print(*footnotes(paper, task.method, task.protocol, differs), sep="\n")
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            mean = {
                row: {name: float(np.mean([rows[row][name] for rows in runs])) for name in values}
                for row, values in runs[0].items()
            }
            by_seed = {"seeds": runs} if task.seeds > 1 else {}
            write_json(out / "metrics.json", {"options": self.options(), **mean, **by_seed})

    def _by_seed(self) -> Iterator["Benchmark"]:
        """Yield the options of each run; the models of one run of mlrc have consecutive seeds."""
        apart = FOLDS if self.task.protocol == "mlrc" else 1
        for seed in range(self.run.seed, self.run.seed + apart * self.task.seeds, apart):
            out = self.run.out
            if out is not None and self.task.seeds > 1:
                out = out / f"seed{seed}"
            yield replace(self, run=replace(self.run, seed=seed, out=out))

    def _read(self, folder: Path | None) -> tuple[Dataset, Retrieval, tuple[str, ...]]:
        """Read training images, queries and gallery, and name the counts that differ from the published ones."""
        name = "folder" if self.task.dry_run else self.task.dataset
        crops: Any = "conventional" if self.task.protocol == "conventional" else "mlrc"
        own = replace(self.data, data_dir=folder)
        images = DataOptions(**vars(own), data=name, augmentation=crops)
        parts, notes, _ = read_files(images, self.run.seed)
        mismatches = count_mismatches(name, parts)
        for line in (*notes, *mismatches):
            print(f"{name}: {line}", flush=True)
        train = parts["train"]
        if self.data.on_bad_image == "skip":
            train = without_bad_images(train)
        queries = parts.get("query", parts.get("test"))
        if queries is None:
            raise ValueError(f"{self.data.data_dir} has no test part, which is scored")
        return train, Retrieval(queries, parts.get("gallery")), mismatches

    def _measure(self, data: Any, test: Any) -> dict[str, dict[str, float]]:
        """Return metrics by row."""
        task, backbone, seed = self.task, str(self.task.backbone), self.run.seed
        recipe, state = self.run_recipe(), self.weights.state()
        network = self.weights.network_settings(backbone)
        batches = self.data.batches(seed, worker_kind=task.worker_kind)
        paper = next((row.values for row in self.paper_rows()), {})
        config = {
            "benchmark": {**self.options(), "data_checksum": data_fingerprint(data)},
            "provenance": {**provenance("jdml benchmark", self), "paper": paper},
        }
        train_fold = partial(
            train,
            model=make_network(recipe, data, pretrained=state and state.load, **network),
            sampler=None if recipe.finetune.caches_features else batches,
            state=state,
            preprocess=self.weights.preprocess(backbone, always=True),
            devices=self.devices.build(recipe.batch.rows),
            progress=not self.run.quiet,
        )
        record = DATASETS[task.dataset]
        test = test._replace(recall_at=record.recall_at, ndcg_at=record.ndcg_at)
        if task.validation:
            rows = hold_out(data, task.validation, seed)
            test = test._replace(queries=data.select(rows), gallery=None)
            data = data.select(~rows)
            labels = np.unique(data.labels, return_inverse=True)[1]  # 0, 1, … without gaps
            data = replace(data, labels=labels)
        if self.data.label_noise:
            labels = corrupt_labels(data.labels, self.data.label_noise, seed)
            data = replace(data, labels=labels)
        run = RunConfig(self.run.out, config=config)
        return run_protocol(task.protocol, recipe, data, test, run, train=train_fold, seed=seed)


@contextlib.contextmanager
def noise_folder() -> Iterator[Path]:
    """Make a temporary folder of classes of noise, each of another brightness."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(16):
            part, images = ("train", 12) if number < 8 else ("test", 2)
            place = Path(folder) / part / f"class{number:02}"
            place.mkdir(parents=True)
            for image in range(images):
                pixels = random.integers(8 * number, 256, (64, 64, 3), np.uint8)
                (place / f"{image}.ppm").write_bytes(b"P6 64 64 255\n" + pixels.tobytes())
        yield Path(folder)
