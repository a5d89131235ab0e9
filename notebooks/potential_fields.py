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
# In PFML (Bhatnagar & Ahuja) every embedding and every proxy is a charge. Charges of one class attract each other,
# all others repel, and both grow *weaker* with distance: a sample far from most of its class is left to those few
# that are near it, and a wrong label far away does little harm. Its foil, CPML, attracts more strongly the farther
# two samples are apart, as most losses do.
#
# What is stored is of MNIST: two minutes of two CPU cores. With `SMALL = True` it is of 8×8 digits, in under one.

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

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jdml
from jdml import fields

SMALL = False  # True: the 8×8 digits of scikit-learn, in under a minute
DATA_DIR = None  # a folder with MNIST; None: TensorFlow Datasets prepares it on first use

# %% [markdown]
# ## One charge and a distance
#
# Attraction is flat inside δ: a charge that has arrived is left alone. Repulsion is flat outside δ: whoever is far
# enough away does not push. Change δ and α and run the cell again.

# %%
DELTA, ALPHA = 0.2, 4.0

r = jnp.linspace(0.08, 1.0, 300)
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for alpha in (1.0, 2.0, ALPHA):
    axes[0].plot(r, fields.potential(r, True, delta=DELTA, alpha=alpha), label=f"α = {alpha:g}")
    axes[1].plot(
        r, fields.potential(r, False, repulsion_delta=DELTA, alpha=alpha), label=f"α = {alpha:g}"
    )
for axis, title in zip(axes, ("attraction", "repulsion"), strict=True):
    axis.set(title=title, xlabel="r", yscale="symlog")
    axis.legend()
plt.show()

# %% [markdown]
# ## The field of a class
#
# A class of zeros and ones, blue, and another one of threes, red: images in the two directions in which MNIST's pixels
# differ most. Drawn are the potential that a blue image feels, and the force that follows from it. (Repulsion reaches
# 2.5 δ here, so that it can be seen; the losses' default is δ.)

# %%
name, folder = ("digits", None) if SMALL else ("mnist", DATA_DIR)
train, new = (jdml.data.load(name, data_dir=folder, split=split) for split in ("train", "test"))
print(
    f"{len(train)} images to train on, {len(new)} new ones, "
    f"of {train.images.shape[1]} by {train.images.shape[2]} pixels"
)
chosen = np.concatenate([np.flatnonzero(train.labels == digit)[:12] for digit in (0, 1, 3)])
pixels = train.images[:2000].reshape(min(2000, len(train)), -1) / 255.0
directions = np.linalg.svd(pixels - pixels.mean(0), full_matrices=False)[2][:2].T
charges = (train.images[chosen].reshape(36, -1) / 255.0 - pixels.mean(0)) @ directions
charges = charges / np.abs(charges).max()
labels = np.repeat([0, 0, 1], 12)
COLOURS = ("tab:blue", "tab:red")
side = jnp.linspace(-1.4, 1.4, 101)
grid = jnp.stack(jnp.meshgrid(side, side), axis=-1)


def draw(axes, title, **settings):
    def field(x):
        return fields.class_field(x, 0, jnp.asarray(charges), jnp.asarray(labels), **settings)

    flat = grid.reshape(-1, 2)
    values = np.asarray(field(flat)).reshape(grid.shape[:2])
    force = -np.asarray(jax.grad(lambda x: field(x).sum())(flat)).reshape(grid.shape)
    size = np.linalg.norm(force, axis=-1, keepdims=True)
    arrows = force / np.maximum(size, 1e-9) * np.log1p(size / np.median(size))
    axes.contourf(
        side, side, np.clip(values, *np.percentile(values, (1, 97))), levels=24, cmap="RdBu_r"
    )
    axes.quiver(side[::6], side[::6], arrows[::6, ::6, 0], arrows[::6, ::6, 1], color="0.25")
    for point, label, digit in zip(charges, labels, train.labels[chosen], strict=True):
        circle = {"boxstyle": "circle,pad=0.15", "fc": COLOURS[label], "ec": "white", "lw": 0.5}
        axes.text(*point, digit, color="white", fontsize=6, ha="center", va="center", bbox=circle)
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")


try:  # sliders where ipywidgets is at hand, as on Colab
    from ipywidgets import interact

    @interact(delta=(0.05, 0.5, 0.05), alpha=(0.5, 6.0, 0.5))
    def show(delta=DELTA, alpha=2.0):
        figure, axes = plt.subplots(figsize=(4.5, 4.5))
        draw(axes, "PFML", delta=delta, alpha=alpha, repulsion_delta=2.5 * delta)
        plt.show()
except ImportError:
    pass

figure, axes = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
draw(axes[0], "PFML", delta=DELTA, alpha=2.0, repulsion_delta=0.5)
draw(axes[1], "CPML", potential=fields.contrastive_potential, delta=DELTA)
plt.show()

# %% [markdown]
# The threes lie between the zeros, on the left, and the ones. In PFML zeros and ones have a valley each, and are pushed
# off the threes; those few that lie among the threes sit on their hill. In CPML there is one valley, in the middle:
# where the threes are.
#
# ## Digits, with wrong labels
#
# A network learns the ten digits while a fifth of its training labels is wrong; new images tell how well it does.

# %%
DIM = 16
STEPS = 30 if SMALL else 150


def learn(objective, noise):
    wrong = jdml.data.corrupt_labels(train.labels, noise, jax.random.key(0))
    return jdml.training.fit(
        jdml.models.EpsNet(dim=DIM),
        objective,
        jdml.optim.partition_by_role(
            # Charges that almost touch push each other very hard: their gradient is clipped.
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
        jdml.potential_field_loss, 10, DIM, 5, alpha=1.0, reduce_fn=jnp.sum
    ),
    "CPML": jdml.objectives.proxy(jdml.contrastive_potential_loss, 10, DIM, 5, reduce_fn=jnp.sum),
    "ProxyAnchor": jdml.objectives.proxy(jdml.proxy_anchor_loss, 10, DIM),
}
for name, objective in objectives.items():
    found = []
    for noise in (0.0, 0.2):
        embeddings = jdml.sphere(jnp.asarray(learn(objective, noise)(new.images)))
        scores = jdml.evaluate_retrieval(embeddings, new.labels)
        found.append(f"R@1 {100 * scores['R@1']:.1f}, MAP@R {100 * scores['MAP@R']:.1f}")
    print(f"{name:12} clean: {found[0]}   20 % wrong: {found[1]}")

# %% [markdown]
# After so short a training ProxyAnchor is ahead, with wrong labels, too, and PFML is ahead of CPML in all four columns.
# A fifth of wrong labels costs each of them about two points of R@1, and nineteen to thirty of MAP@R, which asks for
# the whole class. One run, one seed: an illustration. Five seeds, more losses and larger data are in
# `experiments/potential_fields`.
