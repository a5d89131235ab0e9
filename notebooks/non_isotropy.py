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
# # NIR: a flow around every proxy
#
# A proxy loss only measures how far a sample is from its proxy. All directions around the proxy look the same, and what
# distinguishes the samples of a class can get lost. Non-isotropy regularization (NIR, Roth et al.) adds a conditional
# normalizing flow: every sample should be a likely image of a normal distribution under the flow of its class's proxy.
# The flow can bend, so that a class may have a shape of its own.
#
# The stored outputs are of MNIST and take about six minutes on two CPU cores. With `SMALL = True` the notebook uses
# 8×8 digits and takes less than one.

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
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jdml
from jdml import flows, metrics, objectives, optim, training
from jdml.report import curves

SEEDS = (0,) if SMALL else (0, 1, 2)

# %% [markdown]
# ## A conditional flow learns a density
#
# Two classes, two shapes: images in the two directions in which their pixels differ most. The condition is 0 for even
# digits (0, 2, 4) and 1 for odd ones (1, 3, 5).

# %%
name, folder = ("digits", None) if SMALL else ("mnist", DATA_DIR)
train, new = (jdml.data.load(name, data_dir=folder, split=split) for split in ("train", "test"))
train = train.select(train.views["digit"] <= 5).relabel("parity")
new = new.select(new.views["digit"] <= 5)
print(
    f"{len(train)} images of 0–5 to train on, {len(new)} new ones, "
    f"of {train.images.shape[1]} by {train.images.shape[2]} pixels"
)
pixels = train.images.reshape(len(train), -1)[:10_000] / 255.0
directions = np.linalg.svd(pixels[:2000] - pixels.mean(0), full_matrices=False)[2][:2].T
plane = jnp.asarray((pixels - pixels.mean(0)) @ directions)
plane = plane / plane.std()
parity = jnp.asarray(train.labels[: len(plane), None], jnp.float32)

flow = flows.ConditionalFlow(dim=2, condition_dim=1, num_blocks=4, hidden=32, depth=3)


def draw(key, size=256):
    """Draw some of the images, and whether each is odd."""
    rows = jax.random.randint(key, (size,), 0, len(plane))
    return plane[rows], parity[rows]


def negative_log_likelihood(params, key):
    latents, log_dets = flow.apply(params, *draw(key))
    return jdml.nir_loss(latents, log_dets, shape="identity")


params = flow.init(jax.random.key(0), *draw(jax.random.key(0)))
optimizer = optax.adam(3e-3)


def step(carry, key):
    params, state = carry
    value, gradient = jax.value_and_grad(negative_log_likelihood)(params, key)
    updates, state = optimizer.update(gradient, state)
    return (optax.apply_updates(params, updates), state), value


keys = jax.random.split(jax.random.key(1), 200 if SMALL else 1000)
(params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), keys)
print(f"mean negative log-likelihood: {losses[:20].mean():.2f} → {losses[-100:].mean():.2f}")

# %% [markdown]
# ## The bijection
#
# Top: samples and the density that the flow has learned for each class. Bottom: the same samples mapped by the flow to
# its residual space, where both classes have one normal density (the circles have radius 1 and 2). The colours are
# digits. The map is a bijection: mapped back, the samples are where they were.

# %%
side = jnp.linspace(-3.2, 3.2, 121)
grid = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
figure, axes = plt.subplots(2, 2, figsize=(8, 8), layout="constrained")
for condition, (above, below) in enumerate(axes.T):
    density = flow.apply(params, jnp.full((len(grid), 1), float(condition)), method="distribution")
    values = jnp.exp(density.log_prob(grid)).reshape(len(side), -1)
    above.contourf(side, side, values, levels=20, cmap="Greys")
    rows = np.flatnonzero(np.asarray(parity[:, 0]) == condition)[:400]
    residuals, _ = flow.apply(params, plane[rows], parity[rows])
    back, _ = flow.apply(params, residuals, parity[rows], method="inverse")
    error = float(jnp.abs(back - plane[rows]).max())
    for axis, points in ((above, plane[rows]), (below, residuals)):
        for digit in (condition, condition + 2, condition + 4):
            own = train.views["digit"][rows] == digit
            axis.scatter(*np.asarray(points)[own].T, s=8, color=f"C{digit}", label=str(digit))
        axis.set(aspect="equal", xticks=[], yticks=[], xlim=(-3.2, 3.2), ylim=(-3.2, 3.2))
    for radius in (1, 2):
        below.add_patch(plt.Circle((0, 0), radius, fill=False, color="0.6"))
    total = float(values.sum() * (side[1] - side[0]) ** 2)
    above.set(title=f"{('even', 'odd')[condition]}: the density's integral is {total:.2f}")
    below.set(title=f"residuals; mapped back to within {error:.0e}")
    above.legend(loc="upper right")
plt.show()

# %% [markdown]
# ## NIR around a proxy loss
#
# `with_nir` puts the flow around any proxy objective. The parameters get one more role, `"flow"`, with a learning rate
# of its own. The labels are even and odd; R@1 is measured on the digits, which no label names. For the first 50 steps
# the backbone is frozen, in both runs, because most of what looks like NIR's gain can be this warm-up's
# ([experiments/nir](../experiments/nir/README.md)).

# %%
DIM, STEPS, EVERY = (16, 70, 35) if SMALL else (16, 300, 25)
probe = new.select(np.arange(min(2000, len(new))))


def score(embedder):
    x = jdml.sphere(jnp.asarray(embedder(probe.images)))
    return jdml.evaluate_retrieval(x, probe.labels, recall_at=(1,))


def learn(regularized, seed):
    objective = objectives.proxy(jdml.proxy_anchor_loss, train.num_classes, DIM)
    rates = {"backbone": 1e-3, "head": 1e-3, "proxies": 1e-1}
    if regularized:
        around = flows.preset("released", DIM, DIM)
        objective = objectives.with_nir(objective, around, weight=0.01)
        rates["flow"] = 1e-3
    return training.fit(
        jdml.models.EpsNet(dim=DIM),
        objective,
        optim.partition_by_role(
            {role: optax.adam(rate) for role, rate in rates.items()},
            optim.backbone_and_head,
            waiting={"backbone": 50},
        ),
        train,
        jdml.data.RandomBatchSampler(len(train), 64, seed=seed),
        steps=STEPS,
        seed=seed,
        run=training.RunConfig(log_every=25),
        evaluation=training.Evaluation(score, every=EVERY),
        progress=False,
    )


runs = {
    name: [learn(regularized, seed) for seed in SEEDS]
    for name, regularized in (("ProxyAnchor", False), ("ProxyAnchor + NIR", True))
}

# %% [markdown]
# The convergence: R@1 during training, one line a seed.

# %%
figure, axes = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
for number, (name, of_seeds) in enumerate(runs.items()):
    for seed, run in enumerate(of_seeds):
        points = [(entry["step"], 100 * entry["R@1"]) for entry in run.history if "R@1" in entry]
        label = name if seed == 0 else None
        axes.plot(*np.transpose(points), color=f"C{number}", alpha=0.8, label=label)
axes.set(xlabel="step", ylabel="R@1 of digits")
axes.legend()
plt.show()

# %%
spectra = {}
for name, of_seeds in runs.items():
    results = []
    for run in of_seeds:
        x = jdml.sphere(jnp.asarray(run.embedder(new.images)))
        values = np.linalg.svd(x, compute_uv=False)
        spectra.setdefault(name, []).append(values / values.sum())
        scores = jdml.evaluate_retrieval(x, new.labels)
        results.append([100 * scores["R@1"], 100 * scores["MAP@R"], metrics.spectral_decay(x)])
    pairs = zip(np.mean(results, axis=0), np.std(results, axis=0), strict=True)
    columns = zip(("R@1", "MAP@R", "spectral decay"), pairs, strict=True)
    print(f"{name:18}", *(f"{c} {m:.1f} ± {s:.1f}" for c, (m, s) in columns), sep="  ")

# %% [markdown]
# The singular values tell how many directions the embeddings use; a lower spectral decay is a richer embedding.

# %%
figure, axes = plt.subplots(figsize=(4.4, 3.2), layout="constrained")
for number, (name, of_seeds) in enumerate(spectra.items()):
    for seed, shares in enumerate(of_seeds):
        label = name if seed == 0 else None
        axes.plot(np.arange(1, DIM + 1), shares, "o-", color=f"C{number}", ms=3, label=label)
axes.set(title="share of each singular value", xlabel="singular value", yscale="log")
axes.legend()
plt.show()

# %% [markdown]
# What training logged: the proxy loss, the regularizer, and the mean negative log-likelihood that it is made of.

# %%
curves(
    {"ProxyAnchor + NIR": [run.history for run in runs["ProxyAnchor + NIR"]]},
    metrics=["proxy_loss", "nir_loss", "nll"],
)

# %% [markdown]
# The regularizer is the exponential of the negative log-likelihood. Below about −15 it has vanished: it acts as a
# barrier for samples that are out of place, mostly early in training. Shapes that do not vanish are no improvement,
# because a density has no upper bound and embeddings that keep following it end in one point. Numbers are in
# [experiments/nir](../experiments/nir/README.md).
