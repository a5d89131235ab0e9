# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Proxies that come together, and problems that spread them
#
# Four proxies per class should cover a class better than one. Left alone they do not: the loss draws all four to the
# same point. CCP (Gürbüz et al.) solves one proxy problem after the other instead. When a problem has converged, new
# proxies are chosen among samples that the old ones cover worst, and the weights are anchored where they are, so that
# the next solution stays near.
#
# What is stored is of MNIST: six minutes of two CPU cores. With `SMALL = True` it is of 8×8 digits, in under one.

# %%
# Where jdml is not here yet, it comes from a checkout at or above this folder, else from ADDRESS.
import subprocess
import sys
from importlib import invalidate_caches, metadata, util
from pathlib import Path
from re import match

ADDRESS = ""  # where pip finds jdml: "git+https://…" or a wheel's "https://…", not a mere name
if not all((spec := util.find_spec(name)) and spec.origin for name in ("jdml", "jax", "grain")):
    folders = [here := Path.cwd(), *here.parents, here / "jdml"]
    checkouts = [folder.as_uri() for folder in folders if (folder / "jdml" / "registry").is_dir()]
    if not (source := [*checkouts, ADDRESS][0]):
        sys.exit("jdml is not here: fill in ADDRESS in this cell, its repository as git+https://….")
    old = next((jax.version for jax in metadata.distributions(name="jax")), "0.0")
    keep = f"=={old}" if [int(part) for part in old.split(".")[:2]] >= [0, 9] else ""
    ask = "nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader"
    gpu = match(r"(\d+)\.\S+ (\d+\.\d+)", subprocess.getoutput(ask))  # "580.65.06, 9.0"
    modern = gpu and int(gpu[1]) >= 580 and float(gpu[2]) >= 7.5  # what CUDA 13 asks for
    cuda = "[cuda13]" if modern and not util.find_spec("jax_cuda12_plugin") else "[cuda12]"
    wanted = [f"jdml[train,flows,tfds] @ {source}", f"jax{cuda if gpu else ''}{keep}"]
    print("pip install", *wanted, flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", *wanted]
    if (done := subprocess.run(pip, capture_output=True, text=True)).returncode:
        sys.exit(done.stderr)
    invalidate_caches()
    loaded = [sys.modules[name] for name in ("jax", "numpy") if name in sys.modules]
    changed = any(part.__version__ != metadata.version(part.__name__) for part in loaded)
    if changed or (gpu and "jax" in sys.modules):
        sys.exit("Restart the runtime, then go on from this cell: JAX or NumPy was loaded before.")
import jax

print(jax.devices())

# %%
import dataclasses

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jdml
from jdml import objectives, optim, training
from jdml.ccp import AlternatingProjections
from jdml.metrics import class_covering
from jdml.ops import ball

SMALL = False  # True: the 8×8 digits of scikit-learn, in under a minute
DATA_DIR = None  # a folder with MNIST; None: TensorFlow Datasets prepares it on first use
STEPS, EVERY, PATIENCE, TOLERANCE = (500, 10, 3, 0.01) if SMALL else (1500, 25, 3, 0.01)

# %%
name, folder = ("digits", None) if SMALL else ("mnist", DATA_DIR)
train, new = (jdml.data.load(name, data_dir=folder, split=split) for split in ("train", "test"))
held_out = np.random.default_rng(0).permutation(len(train)) < len(train) // 6
validation, train = train.select(np.flatnonzero(held_out)[:500]), train.select(~held_out)
shown = train.select(np.arange(min(1000, len(train))))
print(
    f"{len(train)} images to train on, {len(validation)} to choose by, {len(new)} new ones, "
    f"of {train.images.shape[1]} by {train.images.shape[2]} pixels"
)

# %% [markdown]
# ## A pair loss with proxies
#
# `as_proxy_objective` turns any pair loss into one with proxies as references, here four for each class. Embeddings and
# proxies live in the unit disk.

# %%
objective = objectives.as_proxy_objective(
    jdml.contrastive_loss,
    train.num_classes,
    2,
    proxies_per_class=4,
    in_batch_weight=0.1,
    positive_margin=0.0,
    negative_margin=0.5,
)
model = jdml.models.EpsNet(dim=2) if SMALL else jdml.models.ResNet20V2(2)


def map_at_r(embedder, part):
    x = ball(jnp.asarray(embedder(part.images)))
    return jdml.evaluate_retrieval(x, part.labels)["MAP@R"]


def learn(problems):
    def adam(rate):
        falling = optax.cosine_decay_schedule(rate, STEPS)
        return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(falling, b2=0.99))

    return training.fit(
        model,
        objective,
        optim.partition_by_role(
            {
                "model": optax.chain(optim.add_anchored_weights(2e-4), adam(1e-3)),
                "proxies": adam(1e-2),
            },
            lambda params: {name: name for name in params},
        ),
        train,
        jdml.data.ClassBatchSampler(train.labels, 8, 4, seed=0),
        steps=STEPS,
        evaluation=training.Evaluation(
            lambda embedder: {"validation": map_at_r(embedder, validation)},
            every=EVERY,
            monitor="validation",
        ),
        callbacks=[problems],
        progress=False,
    )


# %% [markdown]
# ## Alternating problems
#
# `AlternatingProblems` is a callback of the training loop. Here it also notes how each problem begins.


# %%
@dataclasses.dataclass(frozen=True)
class Recorder(training.AlternatingProblems):
    """Alternating problems that keep the proxies and the embeddings at their change."""

    panels: list = dataclasses.field(default_factory=list)

    def keep(self, state, old):
        x = training.embed(self.model, state.params["model"], state.batch_stats, shown.images)
        new = np.array(state.params["proxies"])  # a copy: the training step reuses the buffer
        self.panels.append((np.asarray(ball(jnp.asarray(x))), old, new))

    def start(self, state):
        carried, after = super().start(state)
        self.keep(after, None)
        return carried, after

    def update(self, carried, step, state, metrics):
        result = super().update(carried, step, state, metrics)
        if int(result.carried.machine.problem) > int(carried.machine.problem):
            self.keep(result.state, np.asarray(ball(carried.params["proxies"])))
        return result


problems = Recorder(
    model=model,
    train=train,
    pool_size=16,
    monitor="validation",
    machine=AlternatingProjections(PATIENCE, run_patience=10**6, tolerance=TOLERANCE),
    restore=False,
    anchor_first=False,
)
single = dataclasses.replace(problems, machine=AlternatingProjections(10**6, 10**6), panels=[])
runs = {"single": learn(single), "CCP": learn(problems)}
for name, run in runs.items():
    print(f"{name:8} new images MAP@R {100 * map_at_r(run.embedder, new):.1f}")

# %% [markdown]
# ## The picture
#
# Samples as dots, converged proxies as boxes, the next ones as circles; a colour is a digit.

# %%
panels = problems.panels[:5]
figure, axes = plt.subplots(1, len(panels), figsize=(3.2 * len(panels), 3.4), layout="constrained")
for number, (axis, (points, old, new)) in enumerate(zip(np.atleast_1d(axes), panels, strict=True)):
    for label, colour in enumerate(plt.colormaps["tab10"].colors):
        axis.scatter(*points[shown.labels == label].T, s=4, color=colour, alpha=0.4, linewidths=0)
        if old is not None:
            axis.scatter(*old[label].T, s=60, marker="s", color=colour, edgecolors="black")
        axis.scatter(*new[label].T, s=30, color=colour, edgecolors="black")
    title = "before" if number == 0 else f"after problem {number}"
    axis.set(title=title, xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=[], yticks=[], aspect="equal")
plt.show()

# %%
for number, (points, _, _) in enumerate(panels[1:4], start=1):
    found = class_covering(points, shown.labels)
    print(
        f"problem {number}: covering radius of the classes {found.radius:.3f}, "
        f"{found.ratio:.3f} of the distance between them"
    )

# %% [markdown]
# Problem 1 is the single proxy problem. Its boxes have come together, four to be seen as one, and nine classes lie on
# top of each other along a line; the single run does not get out of there. Problem 2 begins with circles that are
# spread over the samples, and puts the classes all around the disk. Its boxes, too, have come together; those of
# problems 3 and 4 only in part. From problem to problem a class is covered within a smaller part of the distance to
# the others.
#
# One run, one seed: an illustration, and at equal steps a contrastive loss in the batch, without proxies, does as well
# as CCP. Three seeds, ResNet20-v2 and the sweeps are in `experiments/ccp_mnist`.
