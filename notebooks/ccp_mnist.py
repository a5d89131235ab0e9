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
# # CCP: alternating proxy problems
#
# Several proxies per class should cover a class better than one. Trained together they do not: the loss draws all of
# them to the same point. CCP (Gürbüz et al.) solves one proxy problem after the other instead. When a problem has
# converged, each class gets new proxies, chosen among the samples that the old ones cover worst, and the weights are
# anchored at the solution, so that the next one stays near it.
#
# The stored outputs are of MNIST and take about ten minutes on two CPU cores. With `SMALL = True` the notebook uses
# 8×8 digits and takes about one.

# %%
SMALL = False  # True: the 8×8 digits of scikit-learn
DATA_DIR = None  # a folder with MNIST; None: TensorFlow Datasets downloads it on first use

# %%
# @title Install jdml, where it is not installed yet
# From a checkout at, above or in this folder, else from ADDRESS.
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
        sys.exit(
            "jdml is not installed. Write the address of its repository (git+https://…) into ADDRESS "
            "in this cell, or put an unpacked checkout next to this notebook, in a folder called jdml."
        )
    old = next((jax.version for jax in metadata.distributions(name="jax")), "0.0")
    keep = f"=={old}" if [int(part) for part in old.split(".")[:2]] >= [0, 9] else ""
    ask = "nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader"
    gpu = match(r"(\d+)\.\S+ (\d+\.\d+)", subprocess.getoutput(ask))  # "580.65.06, 9.0"
    modern = gpu and int(gpu[1]) >= 580 and float(gpu[2]) >= 7.5  # what CUDA 13 asks for
    cuda = "[cuda13]" if modern and not util.find_spec("jax_cuda12_plugin") else "[cuda12]"
    extras = "train,flows" if globals().get("SMALL") else "train,flows,tfds"
    wanted = [f"jdml[{extras}] @ {source}", f"jax{cuda if gpu else ''}{keep}"]
    print("pip install", *wanted, flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", *wanted]
    if (done := subprocess.run(pip, capture_output=True, text=True)).returncode:
        sys.exit(done.stderr)
    invalidate_caches()
    loaded = [sys.modules[name] for name in ("jax", "numpy") if name in sys.modules]
    changed = any(part.__version__ != metadata.version(part.__name__) for part in loaded)
    if changed or (gpu and "jax" in sys.modules):
        sys.exit("Restart the runtime and run this cell again: JAX or NumPy was loaded before.")
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
from jdml.ops import ball

STEPS, MORE, EVERY = (300, 200, 10) if SMALL else (1500, 1000, 25)

# %%
name, folder = ("digits", None) if SMALL else ("mnist", DATA_DIR)
train, new = (jdml.data.load(name, data_dir=folder, split=split) for split in ("train", "test"))
held_out = np.random.default_rng(0).permutation(len(train)) < len(train) // 6
validation, train = train.select(np.flatnonzero(held_out)[:500]), train.select(~held_out)
shown = train.select(np.arange(min(1000, len(train))))
print(
    f"{len(train)} images to train on, {len(validation)} for validation, {len(new)} for testing, "
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


def learn(steps, begin=None, problems=None):
    def adam(rate):
        falling = optax.cosine_decay_schedule(rate, steps)
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
        jdml.data.ClassBatchSampler(train.labels, 8, 4, seed=2),
        steps=steps,
        seed=2,
        state=begin,
        evaluation=training.Evaluation(
            lambda embedder: {"validation": map_at_r(embedder, validation)},
            every=EVERY,
            monitor="validation",
        ),
        callbacks=[] if problems is None else [problems],
        progress=False,
    )


# %% [markdown]
# ## One problem, then alternating problems
#
# `AlternatingProblems` is a callback of the training loop: it begins with random samples as proxies, and ends a problem
# after three evaluations without improvement. First a single problem is trained until it has converged (with other
# seeds it can end with classes on top of each other: see [the study](../experiments/ccp_mnist/README.md)). From there
# training goes on in two ways, with the same problem and with alternating ones. The class below also records how each
# problem ends.


# %%
@dataclasses.dataclass(frozen=True)
class Recorder(training.AlternatingProblems):
    """Alternating problems that record embeddings, converged proxies and the next ones."""

    panels: list = dataclasses.field(default_factory=list)

    def update(self, carried, step, state, metrics):
        result = super().update(carried, step, state, metrics)
        if int(result.carried.machine.problem) > int(carried.machine.problem):
            x = training.embed(self.model, state.params["model"], state.batch_stats, shown.images)
            x, old = ball(jnp.asarray(x)), ball(result.carried.before)
            following = np.array(result.state.params["proxies"])  # the next step reuses the buffer
            self.panels.append((np.asarray(x), np.asarray(old), following, result.metrics))
        return result


problems = Recorder(
    model=model,
    train=train,
    pool_size=16,
    monitor="validation",
    machine=AlternatingProjections(3, run_patience=10**6, tolerance=0.002),
    first="unchanged",
    restore=False,
)
never = AlternatingProjections(10**6, run_patience=10**6)  # the first problem does not end
first = dataclasses.replace(problems, machine=never, first="random", anchor_first=False)
single = learn(STEPS, problems=first)


def from_single(fresh):
    return fresh._replace(params=single.state.params, batch_stats=single.state.batch_stats)


runs = {
    "single problem": single,
    "single problem, continued": learn(MORE, from_single),
    "CCP from there": learn(MORE, from_single, problems),
}
for name, run in runs.items():
    print(f"{name:26} test MAP@R {100 * map_at_r(run.embedder, new):.1f}")

# %% [markdown]
# ## The proxies
#
# Dots are training samples, boxes the proxies with which a problem converged, circles those with which the next one
# begins; a colour is a digit. Panel (a) is the converged single problem, the others are CCP's. The titles
# have the MAP@R of the samples that are shown.

# %%
panels = problems.panels[:5]
figure, axes = plt.subplots(
    1, len(panels), figsize=(3.2 * len(panels), 3.8), layout="constrained", squeeze=False
)
for number, (axis, (points, old, following, _)) in enumerate(zip(axes[0], panels, strict=True)):
    for label, colour in enumerate(plt.colormaps["tab10"].colors):
        axis.scatter(*points[shown.labels == label].T, s=4, color=colour, alpha=0.4, linewidths=0)
        axis.scatter(
            *old[label].T, s=60, marker="s", color=colour, edgecolors="black", label=str(label)
        )
        axis.scatter(*following[label].T, s=30, color=colour, edgecolors="black")
    score = 100 * jdml.evaluate_retrieval(jnp.asarray(points), shown.labels)["MAP@R"]
    title = "(a) single problem" if number == 0 else f"(b) CCP, problem {number}"
    axis.set(title=f"{title}: {score:.1f}", xticks=[], yticks=[], aspect="equal")
    axis.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
figure.legend(
    *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=10, title="digit"
)
plt.show()

# %% [markdown]
# ## The covering radius
#
# How far the worst-covered sample of a class's pool is from the nearest converged proxy, averaged over classes and in
# units of the distance between classes; and how far a class's converged proxies are from their mean.

# %%
ratios = [float(logged["covering_ratio"]) for *_, logged in problems.panels]
spreads = [
    float(np.linalg.norm(old - old.mean(1, keepdims=True), axis=-1).mean())
    for _, old, _, _ in problems.panels
]
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
for axis, values, title in zip(
    axes, (ratios, spreads), ("covering radius / class distance", "spread of proxies"), strict=True
):
    axis.plot(range(len(values)), values, "o-")
    axis.set(title=title, xlabel="problem (0: the single one)", ylim=(0, None))
plt.show()
print(f"{len(ratios)} problems: covering radius {ratios[0]:.3f} → {ratios[-1]:.3f}")
