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
# # Several proxies for one class
#
# A proxy stands for its class. Where a class has several modes, one proxy can only stand between them, and pulls them
# together. The multi-proxies anchor losses (MPA, Saeki et al.) give each class several, and let each sample choose
# softly among them: `S(x, c) = Σ_k softmax_k(x·w_ck / γ) x·w_ck`, in the place where ProxyAnchor has the cosine to one.
#
# What is stored is of MNIST: three minutes of two CPU cores. With `SMALL = True` it is of 8×8 digits, in under one.

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
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from IPython.display import display

import jdml
from jdml import objectives, optim, training
from jdml.report import embedding_map

SMALL = False  # True: the 8×8 digits of scikit-learn, in under a minute
DATA_DIR = None  # a folder with MNIST; None: TensorFlow Datasets prepares it on first use
DIM = 16
STEPS = 25 if SMALL else 100
PROXIES = (1, 8) if SMALL else (1, 4, 8, 12)

# %% [markdown]
# ## Even and odd, scored on the digits
#
# Training is told even or odd; each of the two classes has five modes, the digits, which nobody has named.

# %%
name, folder = ("digits", None) if SMALL else ("mnist", DATA_DIR)
train, new = (jdml.data.load(name, data_dir=folder, split=split) for split in ("train", "test"))
train, new = train.relabel("parity"), new.select(np.arange(min(3000, len(new))))
print(
    f"{len(train)} images to train on, {len(new)} new ones, "
    f"of {train.images.shape[1]} by {train.images.shape[2]} pixels"
)


def learn(loss, per_class, seed=0):
    result = training.fit(
        jdml.models.EpsNet(dim=DIM),
        objectives.proxy(loss, train.num_classes, DIM, proxies_per_class=per_class),
        optim.partition_by_role(
            {"model": optax.adam(1e-3), "proxies": optax.adam(1e-1)},
            {"model": "model", "proxies": "proxies"},
        ),
        train,
        jdml.data.RandomBatchSampler(len(train), 64, seed=seed),
        steps=STEPS,
        seed=seed,
        progress=False,
    )
    x = jdml.sphere(jnp.asarray(result.embedder(new.images)))
    return x, jdml.sphere(result.state.params["proxies"])


# %% [markdown]
# ## How many proxies
#
# The paper's curve: R@1 by the number of proxies per class, for each loss of the family.

# %%
LOSSES = {
    "MPA": jdml.multi_proxy_anchor_loss,
    "MPA-DW": jdml.multi_proxy_anchor_dw_loss,
    "MPA-AP": jdml.multi_proxy_anchor_ap_loss,
}
learned = {(name, k): learn(loss, k) for name, loss in LOSSES.items() for k in PROXIES}
scores = {
    run: jdml.evaluate_retrieval(x, new.labels, recall_at=(1,), ndcg_at=(8,))
    for run, (x, _) in learned.items()
}
for name in LOSSES:
    for k in (PROXIES[0], PROXIES[-1]):
        of_run = {measure: 100 * scores[name, k][measure] for measure in ("R@1", "nDCG@8", "MAP@R")}
        print(f"{name:6} {k:2}", *(f"{key} {score:.1f}" for key, score in of_run.items()), sep="  ")

# %%
figure, axes = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
for name in LOSSES:
    axes.plot(PROXIES, [100 * scores[name, k]["R@1"] for k in PROXIES], "o-", label=name)
axes.set(xlabel="proxies per class", ylabel="R@1 of digits", xticks=PROXIES)
axes.legend()
plt.show()

# %% [markdown]
# MPA rises with the number of its proxies, as in the paper; MPA-DW and MPA-AP do not. All are at the beginning of their
# training, and a point is one run: five times as long, in `experiments/mpa`, all numbers of proxies are level.
#
# ## Where the proxies go
#
# New images by digit, in the two directions in which they differ most (principal axes of the 16 dimensions), and the
# proxies as stars: one for each of the two classes, or eight.

# %%
for k in (1, 8):
    x, proxies = learned["MPA", k]
    title = f"MPA, proxies per class: {k}"
    display(embedding_map(x, new.labels, proxies=proxies, title=title, max_points=1500))

# %% [markdown]
# Of one proxy each class is a band, odd digits left and even ones right, along which the digits overlap; only the ones
# are a group. The proxies lie far outside. Eight spread around the samples, further apart than these are, and zeros,
# ones and sevens lie at edges of their own.
#
# One run, one seed: an illustration. How many proxies are worth their while, on Omniglot with three seeds, is in
# `experiments/mpa`.
