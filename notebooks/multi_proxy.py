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
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/#upload=true)
#
# A proxy stands for its class. Where a class has several modes, one proxy can only stand between them, and pulls them
# together. The multi-proxies anchor losses (MPA, Saeki et al.) give each class several, and let each sample choose
# softly among them: `S(x, c) = Σ_k softmax_k(x·w_ck / γ) x·w_ck`, in the place where ProxyAnchor has the cosine to one.
#
# Everything runs on the embedded 8×8 digits, in under a minute.

# %%
import importlib.util
import subprocess
import sys
from pathlib import Path

SOURCE = ""  # "git+https://…" takes a git address; "" the checkout that this lies in, else the package index
if importlib.util.find_spec("jdml") is None:
    here = Path.cwd().parent
    source = SOURCE or (f"file://{here}" if (here / "pyproject.toml").is_file() else "")
    wanted = "jdml[train]" + (f" @ {source}" if source else "")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", wanted], check=True)

# %%
import jax.numpy as jnp
import optax
from IPython.display import display

import jdml
from jdml import objectives, optim, training
from jdml.report import embedding_map

# %% [markdown]
# ## Even and odd, scored on the digits
#
# Training is told even or odd; each of the two classes has five modes, the digits, which nobody has named.

# %%
train, new = (jdml.data.load("digits", split=split) for split in ("train", "test"))
train = train.relabel("parity")


def learn(loss, per_class, dim=16, steps=100, seed=0):
    result = training.fit(
        jdml.models.EpsNet(dim=dim),
        objectives.proxy(loss, train.num_classes, dim, proxies_per_class=per_class),
        optim.partition_by_role(
            {"model": optax.adam(1e-3), "proxies": optax.adam(1e-1)},
            {"model": "model", "proxies": "proxies"},
        ),
        train,
        jdml.data.RandomBatchSampler(len(train), 64, seed=seed),
        steps=steps,
        seed=seed,
        evaluate_every=steps,
        progress=False,
    )
    return result, jdml.sphere(jnp.asarray(result.embedder(new.images)))


LOSSES = {
    "ProxyAnchor": (jdml.proxy_anchor_loss, 1),
    "MPA": (jdml.multi_proxy_anchor_loss, 8),
    "MPA-DW": (jdml.multi_proxy_anchor_dw_loss, 8),
    "MPA-AP": (jdml.multi_proxy_anchor_ap_loss, 8),
}
results = {}
for name, (loss, per_class) in LOSSES.items():
    results[name], x = learn(loss, per_class)
    scores = jdml.evaluate_retrieval(x, new.labels, recall_at=(1,), ndcg_at=(8,))
    print(
        f"{name:12} digits: R@1 {100 * scores['R@1']:.1f}, nDCG@8 {100 * scores['nDCG@8']:.1f}, "
        f"MAP@R {100 * scores['MAP@R']:.1f}"
    )

# %% [markdown]
# ## Where the proxies go
#
# New images by digit, in the two directions in which they differ most (principal axes of the 16 dimensions), and the
# proxies as stars: one for each of the two classes, or eight.

# %%
for name in ("ProxyAnchor", "MPA-DW"):
    x = jdml.sphere(jnp.asarray(results[name].embedder(new.images)))
    proxies = jdml.sphere(results[name].state.params["proxies"])
    display(embedding_map(x, new.labels, proxies=proxies, title=name))

# %% [markdown]
# One run, one seed: an illustration. How many proxies are worth their while, on Omniglot with three seeds, is in
# `experiments/mpa`.
