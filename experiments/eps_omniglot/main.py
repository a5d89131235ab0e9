"""EPS on Omniglot: trained on alphabets only, tested on the letters and languages of unseen alphabets.

Reproduces, at 28×28 pixels with a small network, what Levi et al. (*Rethinking Preventing Class-Collapsing*, Tables 3
and 4, Figs. 4 and 5b) show at 80×80 with ResNet-50: easy positive sampling lets an alphabet keep its letters apart.

    python experiments/eps_omniglot/main.py --data-dir DIR --seeds 3

The paper's size is a matter of options (a GPU's work; whether it runs can be seen anywhere):

    python experiments/eps_omniglot/main.py --data-dir DIR --model resnet50 --weights resnet50.safetensors --steps 20000
    python experiments/eps_omniglot/main.py --data-dir DIR --model resnet50 --dry-run

DIR holds images_background.zip and images_evaluation.zip. Two minutes per run on two cores; finished runs are kept, so
that an interrupted study goes on where it stopped. Everything is written to --out.
"""

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array

import jdml
from jdml import data, metrics, mining, models, objectives, optim, training
from jdml.report import markdown_table, mean_std
from jdml.training.checkpoint import write_json
from jdml.training.memory import keep_freed_memory
from jdml.training.study import collect_results, over_seeds, run_study

DIM = 128
MARGIN = 0.2
LEARNING_RATE = 5e-4
PRETRAINED_RATE = 1e-5

POSITIVES = {"": mining.random_positive(), "EPS + ": mining.easy_positive()}

PAPER = {  # R@1, R@8, NMI on letters; R@1, NMI+ on languages: Table 3, 80×80, ResNet-50
    "triplet": (49.4, 76.9, 66.2, 71.0, 38.7),
    "margin": (49.4, 79.2, 68.9, 73.2, 43.5),
    "MS": (57.7, 83.8, 69.2, 78.8, 46.0),
    "ProxyNCA": (49.1, 78.9, 69.0, 73.0, 43.3),
    "EPS + triplet": (68.4, 92.1, 79.6, 85.2, 52.6),
    "EPS + margin": (66.2, 90.3, 77.9, 83.0, 50.7),
    "EPS + MS": (68.7, 92.2, 77.3, 86.2, 53.8),
}


class Swept(NamedTuple):
    """How a sweep is reported, and at which values a row of the methods' table is a point of it."""

    heading: str
    column: str
    axis: str
    known: dict[float, str]


SWEPT = {
    "positives": Swept(
        "EPS + triplet by positives to choose from (1: random positives):",
        "positives",
        "positives that the easy one is chosen from",
        {1: "triplet", 39: "EPS + triplet"},
    ),
    "batches": Swept(
        "EPS + triplet by samples per class in a batch of 160:",
        "samples per class",
        "samples per alphabet in a batch of 160",
        {40: "EPS + triplet"},
    ),
    "trimmed": Swept(
        "Triplet with random positives, the largest terms trimmed:",
        "trimmed share",
        "trimmed share of the triplets (random positives)",
        {0: "triplet"},
    ),
}

Part = Literal["methods", "positives", "batches", "trimmed"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is run."""

    data_dir: Path
    """Folder with Omniglot's two zips, or the folders in them."""
    seeds: int = 3
    """Runs per method, with seeds 0, 1, …"""
    sweep_seeds: int = 1
    """Runs per point of the curves (positives, trimmed)."""
    steps: int = 1200
    """Training steps of each run."""
    parts: tuple[Part, ...] = ("methods", "positives", "batches", "trimmed")
    """methods: Tables 3 and 4. positives: Fig. 5b. batches: another make-up of the batch. trimmed: Fig. 4."""
    out: Path = Path("runs/eps_omniglot")
    """Folder for results, table and figure."""
    workers: int = 1
    """Runs at a time, each in a process of its own."""
    image_size: int | None = None
    """Side of the images, in pixels. Default: 28, and 80 with resnet50."""
    model: Literal["small", "resnet50"] = "small"
    """The network: four convolutions, or the paper's."""
    weights: Path | None = None
    """Pretrained weights of the ResNet-50, from jdml weights convert."""
    rate: float | None = None
    """Learning rate. Default: 5e-4, and with pretrained weights the paper's 1e-5."""
    dry_run: bool = False
    """Two steps of two methods on the images of three alphabets each: whether everything runs."""


def some_positives(count: int) -> mining.Miner:
    """Of every anchor's positives keep ``count``, drawn uniformly."""

    def mine(key: Array | None, distances: Array, pairs: mining.Pairs) -> mining.Pairs:
        assert key is not None
        draws = jnp.where(pairs.positive, jax.random.uniform(key, distances.shape), jnp.inf)
        last = jnp.sort(draws, axis=1)[:, min(count, draws.shape[1]) - 1]
        return pairs._replace(positive=pairs.positive & (draws <= last[:, None]))

    return mine


def make_objective(
    method: str, num_classes: int, trim: float = 0.0, candidates: int | None = None
) -> objectives.Objective:
    """The objective of a row of the table; ``candidates`` positives to choose one from, None: all of the batch."""
    eps = "EPS + " if method.startswith("EPS + ") else ""
    positive = POSITIVES[eps]
    if candidates is not None:
        positive = mining.chain(some_positives(candidates), positive)
    reduce_fn = jdml.trimmed_mean(trim) if trim else jdml.mean_nonzero
    match method.removeprefix("EPS + "):
        case "triplet":
            mine = mining.chain(positive, mining.semi_hard_negative(MARGIN))
            return objectives.pair(jdml.triplet_loss, margin=MARGIN, mine=mine, reduce_fn=reduce_fn)
        case "margin":
            mine = mining.chain(positive, mining.distance_weighted_negative(dim=DIM))
            beta = {"beta": jnp.full(num_classes, 1.2)}
            return objectives.pair(jdml.margin_loss, learned=beta, mine=mine)
        case "MS":
            hard = mining.multi_similarity_pairs(mine_positives=not eps)
            # The negatives are compared with the hardest positive of the batch, then the easy one is kept.
            mine = mining.chain(hard, positive) if eps else hard
            return objectives.pair(jdml.multi_similarity_loss, beta=40.0, mine=mine)
        case "ProxyNCA":
            return objectives.proxy(jdml.proxy_nca_loss, num_classes, DIM, scale=9.0)
    raise ValueError(f"method must be one of {', '.join(PAPER)}, got {method!r}")


def make_optimizer(rate: float) -> optax.GradientTransformation:
    """Adam, for proxies with 100 times the model's learning rate; β of the margin loss learns like the model."""
    transforms = {"model": optax.adam(rate), "proxies": optax.adam(100 * rate)}
    return optim.partition_by_role(
        transforms,
        lambda params: {name: "proxies" if name == "proxies" else "model" for name in params},
    )


@functools.cache
def load(data_dir: str, split: str, image_size: int, alphabets: int | None = None) -> data.Dataset:
    """Omniglot's 30 training or 20 test alphabets, or the first of them, labelled by alphabet."""
    whole = data.load("omniglot", data_dir=data_dir, split=split, image_size=image_size)
    return whole if alphabets is None else whole.select(whole.labels < alphabets)


def as_photographs(images: Array) -> Array:
    """Grey images as a ResNet-50 with pretrained weights expects them."""
    return models.normalizer("resnet50")(jnp.repeat(images, 3, axis=-1))


def score(embeddings: np.ndarray, dataset: data.Dataset, clusters: int) -> dict[str, float]:
    """Retrieval of letters and languages, and how well k-means finds them."""
    x = np.asarray(jdml.sphere(jnp.asarray(embeddings)))
    scores = {}
    for view in ("letter", "alphabet"):
        labels = dataset.views[view]
        found = jdml.evaluate_retrieval(x, labels)
        scores |= {f"{view} {name}": found[name] for name in ("R@1", "R@2", "R@4", "R@8", "MAP@R")}
    letters, languages = dataset.views["letter"], dataset.views["alphabet"]
    scores["letter NMI"] = metrics.nmi(x, letters, key=jax.random.key(0))
    scores["alphabet NMI+"] = metrics.nmi(
        x, languages, num_clusters=clusters, key=jax.random.key(0)
    )
    return scores


def run(job: dict[str, Any]) -> dict[str, float]:
    """Train one network and score it on the unseen alphabets (and on those it was trained on)."""
    train, test = (
        load(job["data_dir"], split, job["image_size"], job.get("alphabets"))
        for split in ("train", "test")
    )
    classes = job["batch"] // job["samples_per_class"]
    large = job.get("model") == "resnet50"
    model = models.ResNet(DIM, freeze_batch_norm=True) if large else models.SmallConvNet(DIM)
    objective = make_objective(job["method"], train.num_classes, job["trim"], job.get("candidates"))
    optimizer = make_optimizer(job.get("rate", LEARNING_RATE))
    weights = job.get("weights")
    result = training.fit(
        model,
        objective,
        optimizer,
        train,
        data.ClassBatchSampler(train.labels, classes, job["samples_per_class"], seed=job["seed"]),
        steps=job["steps"],
        seed=job["seed"],
        pretrained=weights and functools.partial(models.load_weights, weights),
        evaluate_every=job["steps"],
        log_every=job["steps"],
        progress=False,
        preprocess=as_photographs if large else training.to_float,
    )
    scores = score(result.embedder(test.images), test, 30 * test.num_classes)
    if job["score_train"]:
        trained = score(result.embedder(train.images), train, 30 * train.num_classes)
        scores |= {f"train {name}": value for name, value in trained.items()}
    return scores


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run of the study by name, the tables' first."""
    base = {
        "data_dir": str(settings.data_dir.resolve()),
        "image_size": settings.image_size or (28 if settings.model == "small" else 80),
        "steps": settings.steps,
        "batch": 160,
        "samples_per_class": 40,
        "trim": 0.0,
        "score_train": False,
    }
    if settings.model != "small":
        weights = None if settings.weights is None else str(settings.weights.resolve())
        rate = settings.rate or (LEARNING_RATE if weights is None else PRETRAINED_RATE)
        base |= {"model": settings.model, "weights": weights, "rate": rate}
    elif settings.rate is not None:
        base["rate"] = settings.rate
    if settings.dry_run:
        base |= {"steps": 2, "alphabets": 3, "batch": 12, "samples_per_class": 4}
        return {
            f"{method}-0": {**base, "method": method, "seed": 0}
            for method in ("triplet", "EPS + triplet")
        }
    jobs = {}
    for seed in range(settings.seeds):
        if "methods" in settings.parts:
            for method in PAPER:
                extra = {"method": method, "score_train": method in ("triplet", "EPS + triplet")}
                jobs[f"{method}-{seed}"] = {**base, **extra, "seed": seed}
        if "positives" in settings.parts and seed < settings.sweep_seeds:
            for candidates in (5, 10, 20):
                extra = {"method": "EPS + triplet", "candidates": candidates}
                jobs[f"positives {candidates}-{seed}"] = {**base, **extra, "seed": seed}
        if "batches" in settings.parts and seed < settings.sweep_seeds:
            for samples in (8, 16, 80):
                extra = {"method": "EPS + triplet", "samples_per_class": samples}
                jobs[f"batches {samples}-{seed}"] = {**base, **extra, "seed": seed}
        if "trimmed" in settings.parts and seed < settings.sweep_seeds:
            for trim in (0.1, 0.3, 0.5):
                jobs[f"trimmed {trim}-{seed}"] = {
                    **base,
                    "method": "triplet",
                    "trim": trim,
                    "seed": seed,
                }
    return jobs


def methods_table(results: dict[str, dict[str, Any]]) -> str:
    """Table 3: the unseen alphabets, ours and (in brackets) the paper's."""
    columns = ("letter R@1", "letter R@8", "letter NMI", "alphabet R@1", "alphabet NMI+")
    rows = []
    for method, paper in PAPER.items():
        cells = [mean_std(over_seeds(results, method, column)) for column in columns]
        rows.append(
            [method, *(f"{ours} ({figure})" for ours, figure in zip(cells, paper, strict=True))]
        )
    titles = ("letters R@1", "R@8", "NMI", "languages R@1", "NMI+")
    return markdown_table(["method", *titles], rows)


def gains_table(results: dict[str, dict[str, Any]]) -> str:
    """What EPS adds to letters R@1, paired by seed."""
    rows = []
    for method in ("triplet", "margin", "MS"):
        without = over_seeds(results, method, "letter R@1")
        gains = np.subtract(over_seeds(results, f"EPS + {method}", "letter R@1"), without)
        paper = PAPER[f"EPS + {method}"][0] - PAPER[method][0]
        rows.append([method, mean_std(without), mean_std(gains), f"{paper:.1f}"])
    return markdown_table(["loss", "letters R@1", "EPS adds", "paper"], rows)


def trained_table(results: dict[str, dict[str, Any]]) -> str:
    """Table 4: the alphabets that were trained on."""
    columns = ("train alphabet R@1", "train letter R@1", "train letter NMI")
    paper = {"triplet": (99.9, 70.3, 78.4), "EPS + triplet": (94.5, 77.5, 87.1)}
    rows = []
    for method, figures in paper.items():
        cells = [mean_std(over_seeds(results, method, column)) for column in columns]
        rows.append(
            [method, *(f"{ours} ({figure})" for ours, figure in zip(cells, figures, strict=True))]
        )
    return markdown_table(["method", "languages R@1", "letters R@1", "letters NMI"], rows)


def sweep(results: dict[str, dict[str, Any]], part: str) -> dict[float, list[float]]:
    """Letters R@1 by the swept value, for the parts ``positives``, ``batches`` and ``trimmed``."""
    values: dict[float, list[float]] = {}
    for key, result in results.items():
        name, value = key.rpartition("-")[0].split(" ")[:2] if key.startswith(part) else ("", "")
        if name:
            values.setdefault(float(value), []).append(result["metrics"]["letter R@1"])
    return values


def sweep_table(title: str, values: dict[float, list[float]]) -> str:
    """One row per swept value."""
    rows = [[f"{value:g}", mean_std(runs)] for value, runs in sorted(values.items())]
    return markdown_table([title, "letters R@1"], rows)


def report(results: dict[str, dict[str, Any]], settings: Settings) -> str:
    """All tables as Markdown, and the figure."""
    sections = []
    curves = {}
    if "methods" in settings.parts:
        sections += ["Unseen alphabets, in brackets the paper:", methods_table(results)]
        sections += ["EPS against the same loss without it, paired by seed:", gains_table(results)]
        sections += ["The alphabets trained on:", trained_table(results)]
    for part, swept in SWEPT.items():
        if part in settings.parts:
            values = sweep(results, part)
            if "methods" in settings.parts:
                for value, method in swept.known.items():
                    values[value] = over_seeds(results, method, "letter R@1")
            curves[swept.axis] = values
            sections += [swept.heading, sweep_table(swept.column, values)]
    if curves:
        draw_curves(curves, settings.out / "curves.png")
    return "\n".join(sections)


def draw_curves(curves: dict[str, dict[float, list[float]]], path: Path) -> None:
    """Letters R@1 against the swept value, mean and standard deviation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(curves), 3.4), layout="constrained")
    for axes, (title, values) in zip(
        figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True
    ):
        points = sorted(values)
        means = [100 * np.mean(values[point]) for point in points]
        spread = [
            100 * np.std(values[point], ddof=1) if len(values[point]) > 1 else 0 for point in points
        ]
        axes.errorbar(points, means, spread, marker="o", capsize=3)
        axes.set(xlabel=title, ylabel="letters R@1 (%)", ylim=(0, None))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main(settings: Settings) -> None:
    """Run what is missing, print the tables and write table and figure."""
    if settings.weights is not None and settings.model == "small":
        raise SystemExit("--weights are those of a ResNet-50: add --model resnet50")
    jobs = make_jobs(settings)
    first = next(iter(jobs.values()))
    # A wrong folder shows before any work.
    load(first["data_dir"], "train", first["image_size"], first.get("alphabets"))
    out = settings.out / "dry" if settings.dry_run else settings.out
    results = run_study(run, jobs, out / "runs", workers=settings.workers)
    if settings.dry_run:
        print(f"dry run: {len(results)} runs of 2 steps went through")
        return
    text = report(results, settings)
    seconds = sum(result["seconds"] for result in results.values())
    print(
        f"{text}\n{len(results)} runs of {settings.steps} steps, {seconds / 60:.0f} process-minutes in all",
        flush=True,
    )
    write_json(out / "results.json", collect_results(out / "runs"))
    (out / "tables.md").write_text(text)


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(main(tyro.cli(Settings, description=__doc__)))
