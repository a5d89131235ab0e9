"""``jdml benchmark``: a method, a data set, a protocol; the paper's row beside ours."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jdml.cli.benchmark_table import Rows, called, differences, over, paper_rows, show
from jdml.cli.options.base import as_typed
from jdml.cli.options.benchmark import BenchmarkOptions
from jdml.cli.start_of_run import data_checksum, started
from jdml.cli.training_data import load_split
from jdml.recipes import Problems, Recipe
from jdml.recipes.base import Batch
from jdml.recipes.paper_comparison import footnotes
from jdml.registry import DATASETS
from jdml.registry.extras import need

FOLDS = 4
EVERY = {"sop": 250, "inshop": 250}
MLRC_EVALUATIONS = 600
"""150,000 steps where there are many classes: the longest of the tables took 131,000 on average."""
DRY_CLASSES = 8
DRY_IMAGES, DRY_TEST_IMAGES = 8, 2


@dataclass(frozen=True)
class Benchmark(BenchmarkOptions):
    """Train a method by its paper's recipe and score it on classes that it has not seen, beside the paper's row.

    The recipe is the paper's, as printed; --method-setting preset=found (pfml), preset=released (nir, ccp) are others.
    In what a run is not its row's is said below the table, and no row stands beside a task that no table has.

    conventional: one model on all training classes, R@k on the test classes. mlrc: four models, each on three quarters
    of the training classes and stopped by the fourth; scored apart and with their embeddings side by side. ablation:
    one model of that kind, on two thirds and stopped by the third (CCP's). The test classes choose nothing.

    With --out, a killed benchmark goes on where it was when the same command is given again. Other losses, miners,
    networks and splits: jdml train.

    An example, potential fields on CUB with a ResNet-50; below, whether the whole path works, in about a minute:

    jdml benchmark --dataset cub --data-dir CUB_200_2011 --method pfml --weights resnet50.safetensors --out runs/pfml
    """

    def execute(self) -> None:
        """Train, score, show both rows, write metrics.json."""
        from jdml.training.placement import writes
        from jdml.training.run_files import write_json

        self.join()
        self.check()
        _check_folder(self.out)
        if self.dry_run:
            with fake_images(self.crop_size) as folder:
                source = replace(self, dataset="folder", data_dir=folder)
                runs, unlike = self._measure_all(source)
        else:
            runs, unlike = self._measure_all(self)
        if not writes():
            return
        seeds = "" if self.seeds == 1 else f", {self.seeds} seeds"
        title = f"{self.dataset}, {self.protocol}: {self.method}, {self.backbone}{seeds}"
        if self.dry_run:
            show(f"{title} (dry run on noise)", runs)
        else:
            found = paper_rows(self, self.recipe())
            differs = (*unlike, *differences(self))
            below = footnotes(found, self.method, self.protocol, differs)
            show(title, runs, found, below, called(self))
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            rows = runs[0] if self.seeds == 1 else {**over(runs, np.mean), "seeds": runs}
            write_json(self.out / "metrics.json", {"options": self.told(), **rows})
            models = [file.parent for file in sorted(self.out.glob("**/model.safetensors"))]
            if not self.dry_run and models:
                where = shlex.quote(self.dataset + (f":{self.data_dir}" if self.data_dir else ""))
                model = shlex.quote(str(models[0]))
                print(f"next: jdml embed {model} {where} --split test --out embeddings.npz")
                print(f"      jdml search {model} PHOTO.jpg --gallery {where} -k 10")

    def _measure_all(self, source: "Benchmark") -> tuple[list[Rows], tuple[str, ...]]:
        """Metrics by row of each seed, and which counts are not the published ones."""
        data, unlike = self._read(source)
        runs = []
        for number in range(self.seeds):
            apart = FOLDS if self.protocol == "mlrc" else 1  # whose models have seeds in a row
            out = self.out
            if out is not None and self.seeds > 1:
                out = out / f"seed{self.seed + apart * number}"
            one = replace(self, seed=self.seed + apart * number, out=out)
            runs.append(one._measure(*data))
        return runs, unlike

    def _read(self, source: "Benchmark") -> tuple[tuple[Any, Any], tuple[str, ...]]:
        """Training and test images, and which counts are not the published ones."""
        from jdml import data
        from jdml.data.checking import unlike_published

        crops = data.conventional if self.protocol == "conventional" else data.mlrc
        train, test = read(source, crops(self.crop_size))
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
        from jdml.training.protocols import ablation, conventional, mlrc

        plan = self._plan(train)
        if self.protocol == "mlrc":
            return mlrc(plan, train, test, self.out)
        if self.protocol == "ablation":
            return {"ours": ablation(plan, train, test, self.out)}
        if self.label_noise:
            labels = data.corrupt_labels(train.labels, self.label_noise, self.seed)
            train = replace(train, labels=labels)
        return {"ours": conventional(plan, train, test, self.out)}

    @property
    def longest(self) -> int | None:
        """How many steps a run has at most where nobody typed them; None: the recipe's."""
        if self.protocol == "conventional":
            return None
        return MLRC_EVALUATIONS * EVERY.get(self.dataset, 25)

    def _plan(self, train: Any) -> Any:
        from jdml.data import ImageBatches
        from jdml.recipes import make_objective
        from jdml.training.by_recipe import make_network
        from jdml.training.placement import writes
        from jdml.training.protocols import Plan
        from jdml.training.scoring import ndcg_ranks, recall_ranks

        recipe = self.recipe()
        with as_typed():
            make_objective(recipe, 2)  # tells wrong settings before any work
        steps, every = self.steps, EVERY.get(self.dataset, 25)
        if self.dry_run:
            recipe, every = rehearsed(recipe), 2
            steps = 2 if steps is None else steps
        elif steps is None:
            steps = self.longest
        mesh, where = self.mesh(recipe.batch_size)
        for line in where if writes() else ():
            print(line, flush=True)

        def batches(dataset: Any, sampler: Any) -> Any:
            return ImageBatches(
                dataset,
                sampler,
                seed=self.seed,
                workers=self.workers,
                worker_kind=self.worker_kind,
                on_bad_image=self.on_bad_image or "stop",
            )

        return Plan(
            recipe=recipe,
            model=make_network(
                recipe,
                train,
                pretrained=self.pretrained(),
                **self.network_settings(self.backbone),
            ),
            steps=steps,
            evaluate_every=every,
            seed=self.seed,
            preprocess=self.preprocess(self.backbone),
            pretrained=self.pretrained(),
            batches=batches,
            recall_at=recall_ranks(self.dataset),
            ndcg_at=ndcg_ranks(self.dataset),
            config=self._config(train),
            progress=not self.quiet,
            mesh=mesh,
            micro_batch=self.micro_batch,
        )

    def _config(self, train: Any) -> dict[str, Any]:
        """What must agree for a run to go on, beside its recipe: all that changes what is computed."""
        rows = [] if self.dry_run else paper_rows(self, self.recipe())
        images = None if self.dry_run else data_checksum(train)
        return {
            "benchmark": {**self.defining(), "data_checksum": images},
            "started": {
                **started("jdml benchmark", self),
                "paper": rows[0].values if rows else {},
            },
        }


def _check_folder(out: Path | None) -> None:
    """Refuse a folder of something else, whose scores the benchmark's would replace."""
    from jdml.training.run_files import CONFIG, METRICS, is_of_benchmark, read_json

    if out is None:
        return
    if (out / CONFIG).is_file():
        own = is_of_benchmark(read_json(out / CONFIG, dict))
    else:
        own = not (out / METRICS).is_file() or "options" in read_json(out / METRICS, dict)
    if not own:
        raise ValueError(f"--out {out} holds another run: give another folder")


def read(source: Benchmark, crops: Any) -> tuple[Any, Any]:
    """The training classes, and what is searched for what."""
    from jdml import data
    from jdml.training.protocols import Retrieval

    def load(split: str) -> Any:
        part = load_split(source.dataset, source.data_dir, split, transform=crops)
        return data.without_bad_images(part) if source.on_bad_image == "skip" else part

    if "query" in DATASETS[source.dataset].published:
        return load("train"), Retrieval(load("query"), load("gallery"))
    return load("train"), Retrieval(load("test"))


def rehearsed(recipe: Recipe) -> Recipe:
    """The recipe with batches and pools that the made-up images fill."""
    small: Batch = (DRY_CLASSES // 4, 4) if isinstance(recipe.batch, tuple) else DRY_CLASSES
    method = recipe.method
    if isinstance(method, Problems):
        method = replace(method, pool_size=DRY_IMAGES)
    return replace(recipe, batch=small, method=method)


@contextmanager
def fake_images(size: int) -> Iterator[Path]:
    """A folder of classes with noise as JPEG files, a little larger than the crops."""
    import tempfile

    need("PIL", "a dry run")
    from PIL import Image

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for of_class in range(2 * DRY_CLASSES):
            training = of_class < DRY_CLASSES
            folder = Path(name) / ("train" if training else "test") / f"class{of_class:02}"
            folder.mkdir(parents=True)
            colour = rng.integers(0, 256, (1, 1, 3))
            for number in range(DRY_IMAGES if training else DRY_TEST_IMAGES):
                noise = rng.integers(-40, 40, (size + 24, size + 40, 3))
                pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
        yield Path(name)
