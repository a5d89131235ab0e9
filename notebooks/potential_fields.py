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
# # Metric learning in a potential field
#
# In PFML (Bhatnagar & Ahuja) every embedding and every proxy is a charge. Charges of one class attract each other and
# charges of different classes repel each other, and both forces get *weaker* with distance. A sample far from most of
# its class stays with the few that are near it, and a wrong label far away does little harm. CPML, the comparison,
# attracts more strongly the farther two samples are apart, as most losses do.
#
# The stored outputs are of MNIST and take about five minutes on two CPU cores. With `SMALL = True` the notebook uses
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
import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jdml
from jdml import fields

# %% [markdown]
# ## The potential of one charge
#
# Attraction is constant within δ of a charge: what has arrived is left alone. Repulsion is constant beyond δ: what is
# far enough away is not pushed. Both axes are logarithmic, so that a power law is a straight line. Change δ and α and
# run the cell again.

# %%
DELTA, ALPHA = 0.2, 4.0

r = jnp.geomspace(0.05, 2.0, 300)
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for alpha in (1.0, 2.0, ALPHA):
    attraction = fields.potential(r, True, delta=DELTA, alpha=alpha)
    repulsion = fields.potential(r, False, repulsion_delta=DELTA, alpha=alpha)
    axes[0].loglog(r, -attraction, label=f"α = {alpha:g}")
    axes[1].loglog(r, repulsion, label=f"α = {alpha:g}")
axes[0].set(title="attraction: −ψ(r), upside down", xlabel="distance r")
axes[0].invert_yaxis()
axes[1].set(title="repulsion: ψ(r)", xlabel="distance r")
for axis in axes:
    axis.axvline(DELTA, color="0.7", linestyle=":", zorder=0)
    axis.legend()
plt.show()

# %% [markdown]
# ## The field of each class
#
# Class 1 (blue) holds zeros and ones, class 2 (red) threes: images in the two directions in which MNIST's pixels differ
# most, and two proxies of each class as stars. A class has its own field: Ψ₁ is the potential that a sample of class 1
# feels, Ψ₂ that of class 2, and the arrows are the forces. (Repulsion reaches 2.5 δ here to be visible; the losses'
# default is δ.)

# %%
name, folder = ("digits", None) if SMALL else ("mnist", DATA_DIR)
train, new = (jdml.data.load(name, data_dir=folder, split=split) for split in ("train", "test"))
chosen = np.concatenate([np.flatnonzero(train.labels == digit)[:12] for digit in (0, 1, 3)])
pixels = train.images[:2000].reshape(min(2000, len(train)), -1) / 255.0
directions = np.linalg.svd(pixels - pixels.mean(0), full_matrices=False)[2][:2].T
samples = (train.images[chosen].reshape(36, -1) / 255.0 - pixels.mean(0)) @ directions
samples = samples / np.abs(samples).max()
proxies = np.stack([samples[:12].mean(0), samples[12:24].mean(0), *samples[[25, 33]]])
charges = np.concatenate([samples, proxies])
labels = np.array([0] * 24 + [1] * 12 + [0, 0, 1, 1])
COLOURS = ("tab:blue", "tab:red")
side = jnp.linspace(-1.4, 1.4, 101)
grid = jnp.stack(jnp.meshgrid(side, side), axis=-1)


def draw(axes, title, label, **settings):
    def field(x):
        return fields.class_field(x, label, jnp.asarray(charges), jnp.asarray(labels), **settings)

    flat = grid.reshape(-1, 2)
    values = np.asarray(field(flat)).reshape(grid.shape[:2])
    force = -np.asarray(jax.grad(lambda x: field(x).sum())(flat)).reshape(grid.shape)
    size = np.linalg.norm(force, axis=-1, keepdims=True)
    arrows = force / np.maximum(size, 1e-9) * np.log1p(size / np.median(size))
    axes.contourf(
        side, side, np.clip(values, *np.percentile(values, (1, 97))), levels=24, cmap="PuOr_r"
    )
    axes.quiver(side[::6], side[::6], arrows[::6, ::6, 0], arrows[::6, ::6, 1], color="0.25")
    for point, owner, digit in zip(samples, labels, train.labels[chosen], strict=False):
        circle = {"boxstyle": "circle,pad=0.15", "fc": COLOURS[owner], "ec": "white", "lw": 0.5}
        axes.text(*point, digit, color="white", fontsize=6, ha="center", va="center", bbox=circle)
    for point, owner in zip(proxies, labels[len(samples) :], strict=True):
        axes.scatter(*point, s=220, marker="*", color=COLOURS[owner], edgecolors="black", zorder=5)
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")


try:  # sliders where ipywidgets is installed, as on Colab
    from ipywidgets import interact

    @interact(delta=(0.05, 0.5, 0.05), alpha=(0.5, 6.0, 0.5))
    def show(delta=DELTA, alpha=2.0):
        figure, axes = plt.subplots(figsize=(4.5, 4.5))
        draw(axes, "PFML, Ψ₁", 0, delta=delta, alpha=alpha, repulsion_delta=2.5 * delta)
        plt.show()
except ImportError:
    pass

figure, axes = plt.subplots(2, 2, figsize=(9, 9), layout="constrained")
for row, label in zip(axes, (0, 1), strict=True):
    name = f"Ψ{'₁₂'[label]}"
    draw(row[0], f"PFML, {name}", label, delta=DELTA, alpha=2.0, repulsion_delta=0.5)
    draw(row[1], f"CPML, {name}", label, potential=fields.contrastive_potential, delta=DELTA)
plt.show()

# %% [markdown]
# Purple is low, orange is high. In PFML's Ψ₁ zeros and ones have a valley each, and the threes between them are a hill;
# in Ψ₂ it is the other way round. In CPML each class has one valley, in its middle: for class 1 that is where the
# threes are.
#
# ## Even and odd digits, with wrong labels
#
# As in README and [the study](../experiments/potential_fields/README.md): a network learns even and odd from the digits
# 0–5 while a fifth of its training labels is wrong, and R@1 is measured on the digits 6–9, which it has never seen.

# %%
DIM = 16
STEPS = 30 if SMALL else 500
train = train.select(train.views["digit"] <= 5).relabel("parity")
unseen = new.select(new.views["digit"] > 5)
print(
    f"{len(train)} images to train on, {len(unseen)} of unseen digits, "
    f"of {train.images.shape[1]} by {train.images.shape[2]} pixels"
)


def learn(objective, noise):
    wrong = jdml.data.corrupt_labels(train.labels, noise, jax.random.key(0))
    return jdml.training.fit(
        jdml.models.EpsNet(dim=DIM),
        objective,
        jdml.optim.partition_by_role(
            # Charges that almost touch push each other very hard, so the proxies' gradient is clipped.
            {
                "model": optax.adam(1e-3),
                "proxies": optax.chain(optax.clip(5.0), optax.adam(1e-1)),
            },
            lambda params: {name: name for name in params},
        ),
        dataclasses.replace(train, labels=wrong),
        jdml.data.RandomBatchSampler(len(train), 64, seed=0),
        steps=STEPS,
        progress=False,
    ).embedder


objectives = {
    "PFML": jdml.objectives.proxy(
        jdml.potential_field_loss, 2, DIM, 15, alpha=1.0, reduce_fn=jnp.sum
    ),
    "CPML": jdml.objectives.proxy(jdml.contrastive_potential_loss, 2, DIM, 15, reduce_fn=jnp.sum),
    "ProxyAnchor": jdml.objectives.proxy(jdml.proxy_anchor_loss, 2, DIM),
}
for name, objective in objectives.items():
    scores = []
    for noise in (0.0, 0.2):
        embeddings = jdml.sphere(jnp.asarray(learn(objective, noise)(unseen.images)))
        score = jdml.evaluate_retrieval(embeddings, unseen.views["digit"])["R@1"]
        scores.append(f"R@1 {100 * score:.1f}")
    print(f"{name:12} clean labels: {scores[0]}   20 % wrong: {scores[1]}")

# %% [markdown]
# With wrong labels PFML is ahead of ProxyAnchor by more than with clean ones: a wrong label is a charge far from where
# the network puts the image, and far charges do little. One run is an illustration; five seeds, more losses and
# Omniglot are in [experiments/potential_fields](../experiments/potential_fields/README.md).
