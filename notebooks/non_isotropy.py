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
# # A flow around every proxy
#
# A proxy loss cares how far a sample is from its proxy, not in which direction: around a proxy all directions are the
# same, and what distinguishes the samples of a class may be lost. Non-isotropy regularization (NIR, Roth et al.) asks
# that every sample be a likely outcome of a flow that begins at its proxy. The flow can bend, so a class may have a
# shape of its own.
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
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jdml
from jdml import flows, metrics, objectives, optim, training
from jdml.report import curves

SMALL = False  # True: the 8×8 digits of scikit-learn, in under a minute
DATA_DIR = None  # a folder with MNIST; None: TensorFlow Datasets prepares it on first use

# %% [markdown]
# ## A conditional flow learns a density
#
# Two classes, two shapes: images in the two directions in which their pixels differ most, even digits (0, 2, 4) where
# the condition is 0, odd ones (1, 3, 5) where it is 1. `distribution(condition)` is a density to evaluate and to draw
# from.

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
    """Some of the images, and whether each is odd."""
    rows = jax.random.randint(key, (size,), 0, len(plane))
    return plane[rows], parity[rows]


def surprise(params, key):
    latents, log_dets = flow.apply(params, *draw(key))
    return jdml.nir_loss(latents, log_dets, shape="identity")


params = flow.init(jax.random.key(0), *draw(jax.random.key(0)))
optimizer = optax.adam(3e-3)


def step(carry, key):
    params, state = carry
    value, gradient = jax.value_and_grad(surprise)(params, key)
    updates, state = optimizer.update(gradient, state)
    return (optax.apply_updates(params, updates), state), value


keys = jax.random.split(jax.random.key(1), 200 if SMALL else 1000)
(params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), keys)
print(f"mean negative log-likelihood: {losses[:20].mean():.2f} → {losses[-100:].mean():.2f}")

# %%
side = jnp.linspace(-3.2, 3.2, 121)
grid = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for condition, axis in enumerate(axes):
    density = flow.apply(params, jnp.full((len(grid), 1), float(condition)), method="distribution")
    values = jnp.exp(density.log_prob(grid)).reshape(len(side), -1)
    axis.contourf(side, side, values, levels=20, cmap="viridis")
    some = np.flatnonzero(np.asarray(parity[:, 0]) == condition)[:150]
    for x, y, digit in zip(*plane[some].T, train.views["digit"][some], strict=True):
        axis.text(x, y, digit, color="white", fontsize=6, ha="center", va="center", clip_on=True)
    total = float(values.sum() * (side[1] - side[0]) ** 2)
    name = ("even", "odd")[condition]
    axis.set(title=f"{name}: integral {total:.3f}", aspect="equal", xticks=[], yticks=[])
plt.show()

# %% [markdown]
# The flow has bent a round cloud to what each class is. Even: fours and some of the twos are on one ridge, zeros on
# another, the other twos beside them. Odd: ones in a peak so narrow and high that threes and fives are a faint plain.
# Circles around a proxy would have drawn neither.
#
# ## Around a proxy loss
#
# `with_nir` puts the flow around any proxy objective. The parameters have a role more, `"flow"`, and with it a learning
# rate of its own. Even and odd are learned; the digits, which nobody named, are what is scored. NIR warms up: for 50
# steps the backbone waits, and leaves no trace in Adam. Both runs do, as most of what is called NIR's gain can be the
# warm-up's (`experiments/nir`).

# %%
DIM = 16


def learn(regularized, seed=0, steps=70 if SMALL else 200):
    objective = objectives.proxy(jdml.proxy_anchor_loss, train.num_classes, DIM)
    rates = {"backbone": 1e-3, "head": 1e-3, "proxies": 1e-1}
    if regularized:
        around = flows.preset("released", DIM, DIM)
        objective = objectives.with_nir(objective, around, weight=0.01)
        rates["flow"] = 1e-3
    result = training.fit(
        jdml.models.EpsNet(dim=DIM),
        objective,
        optim.partition_by_role(
            {role: optax.adam(rate) for role, rate in rates.items()},
            optim.backbone_and_head,
            waiting={"backbone": 50},
        ),
        train,
        jdml.data.RandomBatchSampler(len(train), 64, seed=seed),
        steps=steps,
        seed=seed,
        run=training.RunConfig(log_every=20),
        progress=False,
    )
    return jdml.sphere(jnp.asarray(result.embedder(new.images))), result.history


spectra = {}
for name, regularized in (("ProxyAnchor", False), ("ProxyAnchor + NIR", True)):
    x, history = learn(regularized)
    scores = jdml.evaluate_retrieval(x, new.labels)
    digits = jnp.asarray(new.labels)
    values = np.linalg.svd(x, compute_uv=False)
    spectra[name] = values / values.sum()
    print(
        f"{name:18} digits: R@1 {100 * scores['R@1']:.1f}, MAP@R {100 * scores['MAP@R']:.1f}   "
        f"spectral decay {metrics.spectral_decay(x):.2f}, density {metrics.class_density(x, digits):.2f}, "
        f"uniformity {metrics.uniformity(x):.2f}"
    )

# %% [markdown]
# The singular values say how many directions the embeddings use; less decay is a richer embedding.

# %%
figure, axes = plt.subplots(figsize=(4.4, 3.2), layout="constrained")
for name, shares in spectra.items():
    axes.plot(np.arange(1, DIM + 1), shares, "o-", label=name)
axes.set(title="share of each singular value", xlabel="singular value", yscale="log")
axes.legend()
plt.show()

# %% [markdown]
# Two directions hold four fifths of both embeddings; of most others, up to the twelfth, NIR has a little more.
#
# What training logged: the proxy loss, the regularizer, and the mean negative log-likelihood that it is made of.

# %%
curves({name: history}, metrics=["proxy_loss", "nir_loss", "nll"])

# %% [markdown]
# Below −15 the exponential of the negative log-likelihood is under 3e-7: the regularizer has fallen silent. It works
# as a barrier for samples that are out of place, at the beginning above all. Shapes that never fall silent are no
# improvement: a density has no upper bound, and embeddings that go on following it end in one point.
# `experiments/nir` has numbers.
