"""Adding a thing touches as few files as CONTRIBUTING says: each kind is added to a copy, and is there everywhere.

What is added is written down here, and what it is looked for is `KINDS`, which this file runs as a program of its own
where the copy is the library: ``python tests/repository/test_adding.py``.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jdml

pytestmark = pytest.mark.slow

PACKAGE = Path(jdml.__file__).parent
Lines = Mapping[str, str]
"""By a line of a file, what comes after it; by "", what comes at the file's end."""
Change = Mapping[str, str | Lines]
"""By a file of ``jdml/``, the whole of a new one, or lines for one that is there."""

LOSS: Change = {
    "losses/pairs.py": {
        '    "similarity_contrastive_loss",': """
    "soft_contrastive_loss",
""",
        "": '''

@ops.public(compare, margin=checks.finite)
def soft_contrastive_loss(
    embeddings: Array,
    labels: Array | None = None,
    *,
    margin: float | Array = 0.5,
    reduce_fn: ReduceFn | None = mean,
    **options: Unpack[CompareOptions],
) -> Array:
    """Compute the contrastive loss with a soft hinge: ``reduce_pos d + reduce_neg softplus (m - d)``."""

    def terms(c: Comparison) -> PairTerms:
        push = jax.nn.softplus(margin - c.distances)
        return (c.distances, c.pairs.positive), (push, c.pairs.negative)

    return compare(embeddings, labels, **options).reduce_pairs(reduce_fn, terms)
''',
    },
    "registry/losses.py": {
        '    Loss("snr_contrastive", "pair", "tuples"),': """
    Loss("soft_contrastive", "pair", "pairs"),
"""
    },
}

MINER: Change = {
    "mining/miners.py": {
        '    "multi_similarity_pairs",': """
    "near_negative",
""",
        "": '''

def near_negative(radius: float | Array = 1.0) -> Miner:
    """Keep, of every anchor's negatives, those nearer than a radius."""
    checks.non_negative("radius", radius)
    return Rule(_near_negative, {"radius": _number(radius)})


def _near_negative(key: Array | None, distances: Array, pairs: Pairs, *, radius: Array) -> Pairs:
    return pairs._replace(negative=pairs.negative & (distances < radius))
''',
    },
    "registry/miners.py": {
        '    Miner("hard_negative", ("hard_negative",)),': """
    Miner("near_negative", ("near", "near_negative")),
"""
    },
}

NETWORK: Change = {
    "models/linear.py": '''"""The smallest network."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.models.layers import as_floating


class LinearNet(nn.Module):
    """One dense layer over all pixels."""

    dim: int = 64
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images ``[B, H, W, C]``."""
        x = as_floating(images, self.dtype)
        dense = nn.Dense(self.dim, dtype=self.dtype, name="embedding")
        return dense(x.reshape(len(x), -1)).astype(jnp.float32)
''',
    "registry/networks.py": {
        "NETWORKS: dict[str, Network] = _records(": """
    Network(
        "linear",
        "jdml.models.linear:LinearNet",
        small_images=True,
        layers="a dense layer",
        pooling=False,
        batch_norm=False,
    ),
"""
    },
}

DATA_SET: Change = {
    "data/bars.py": '''"""Bars: small pictures of one bar each."""

from pathlib import Path

import numpy as np

from jdml.data.dataset import Dataset
from jdml.data.digits import check_split


def load_bars(data_dir: str | Path | None, split: str = "train") -> Dataset:
    """Load the bars of ``bars.npz``, labelled by their place."""
    check_split(split, ("train", "test", "all"))
    if data_dir is None:
        raise ValueError("data_dir must be the folder of bars.npz, got None")
    with np.load(Path(data_dir) / "bars.npz") as file:
        images, places, tests = file["images"], file["places"], file["tests"]
    bars = Dataset("bars", images, places, {"place": places, "side": places % 2})
    return bars if split == "all" else bars.select(tests if split == "test" else ~tests)
''',
    "registry/datasets.py": {
        "DATASETS: dict[str, DataSet] = _records(": """
    DataSet(
        "bars",
        "arrays",
        "jdml.data.bars:load_bars",
        "`bars.npz`",
        ("place", "side"),
        published={"train": Count(4, 64), "test": Count(4, 32)},
        sign="bars.npz",
    ),
"""
    },
}

OPTION: Change = {
    "cli/options/optimizer.py": {
        '    """Weight decay of the model: decoupled with adamw, added to the gradient with adam and sgd."""': '''
    b2: Annotated[float | None, non_negative, IN_RECIPE] = None
    """Adam's second decay rate. Default: 0.999."""
''',
        "            **super().changes(base),": """
            **self.typed({"b2": "b2"}),
""",
    }
}

METHOD: Change = {
    "training/shrinking.py": '''"""Shrinking: a network's weights are pulled towards 0 after each evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jdml.recipes.base import Recipe
from jdml.registry.methods import Shrinking
from jdml.training.hooks import Hook, HookResult
from jdml.training.models import Model
from jdml.training.placement import Tree
from jdml.training.preprocess import Preprocess, standard
from jdml.training.spec import TrainSet
from jdml.training.step import TrainState


@dataclass(frozen=True)
class ShrinkWeights(Hook):
    """Multiply the network's weights by a factor after each evaluation, and count."""

    factor: float

    @property
    def config(self) -> Mapping[str, Any]:
        """Nothing: the recipe says it."""
        return {}

    def template(self, state: TrainState) -> Tree:
        """Give the count."""
        return np.zeros((), np.int32)

    def start(self, state: TrainState) -> tuple[Tree, TrainState]:
        """Begin to count."""
        return self.template(state), state

    def after_evaluation(
        self, carried: Tree, state: TrainState, metrics: Mapping[str, float]
    ) -> HookResult:
        """Shrink the weights."""
        model = jax.tree.map(lambda leaf: self.factor * leaf, state.params["model"])
        state = state._replace(params={**state.params, "model": model})
        return HookResult(carried + 1, state, {"shrunk": int(carried) + 1}, ended=False)


def make_hook(
    recipe: Recipe,
    model: Model,
    train: TrainSet,
    monitor: str | None,
    *,
    seed: int = 0,
    preprocess: Preprocess = standard,
) -> ShrinkWeights:
    """Make what shrinks the weights."""
    assert isinstance(recipe.method, Shrinking)
    return ShrinkWeights(recipe.method.factor)
''',
    "registry/methods.py": {
        "    in_batch_weight: Annotated[float, non_negative] = 0.0": '''


@dataclasses.dataclass(frozen=True)
class Shrinking(Method):
    """A pair loss, after each evaluation of which the network's weights shrink.

    Attributes:
        factor: what they are multiplied by.
    """

    name = "shrink"
    kind = "pair"
    loss = "triplet"
    hook = "jdml.training.shrinking:make_hook"

    factor: Annotated[float, positive] = 0.9
''',
        "METHODS: dict[str, type[Method]] = _records(": """
    Shrinking,
""",
    },
}

COMMAND: Change = {
    "cli/classes.py": '''"""``jdml classes``: what a data set is labelled by."""

from dataclasses import dataclass

from jdml.registry import DATASETS


@dataclass(frozen=True)
class Classes:
    """Say what a data set is labelled by."""

    name: str
    """The data set."""

    def execute(self) -> None:
        """Print the names of its labels."""
        print(*DATASETS[self.name].labellings)
''',
    "cli/commands.py": {
        "    for command in (": """
        Command(
            "classes",
            "jdml.cli.classes:Classes",
            "say what a data set is labelled by",
            "jdml classes sop",
            computes=False,
        ),
"""
    },
}


# What is looked for, with the copy as the library.


def shown(*words: object, code: int | str = 0) -> str:
    """What ``jdml …`` prints, which ends with a code."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            ended: Any = jdml.cli.main([str(word) for word in words])
        except SystemExit as stop:  # as help does
            ended = stop.code or 0
    assert ended == code, text.getvalue()
    return text.getvalue()


def shown_help(*command: str) -> str:
    """What the help of a command says, in one line, without its frame."""
    return " ".join(shown(*command, "--help").replace("│", " ").split())


def trained(*words: object, steps: int = 1) -> dict[str, Any]:
    """Train the network that is added by the command line, in ``run``; give the recipe that the folder holds."""
    shown("train", "--model", "linear", *words, "--steps", steps, "--quiet", "--out", "run")
    recipe = json.loads(Path("run/config.json").read_text())["recipe"]
    assert jdml.recipes.Recipe.from_json(recipe).to_json() == recipe
    return recipe


def check_loss() -> None:
    x, y = np.eye(4, 2, dtype=np.float32), np.array([0, 0, 1, 1])
    assert jdml.soft_contrastive_loss is jdml.losses.soft_contrastive_loss
    assert jdml.soft_contrastive_loss(x, y) < jdml.soft_contrastive_loss(x, y, margin=1.0)
    assert "soft_contrastive" in shown_help("train")
    recipe = trained("--loss", "soft_contrastive", "--loss-setting", "margin=0.3")
    assert (recipe["loss"], recipe["settings"]) == ("soft_contrastive", {"margin": 0.3})
    wrong = shown("train", "--loss", "soft_contrastive", "--loss-setting", "margni=1", code=2)
    assert "did you mean margin?" in wrong


def check_miner() -> None:
    from jdml.recipes.words import build_miner

    easy, near = jdml.mining.easy_positive(), jdml.mining.near_negative(radius=0.5)
    assert build_miner("eps+near:radius=0.5", dim=8) == jdml.mining.chain(easy, near)
    assert "near_negative" in shown_help("train")
    assert trained("--miner", "near_negative")["miner"] == "near_negative"
    assert "did you mean near?" in shown("train", "--miner", "neer", code=2)


def check_network() -> None:
    images = np.zeros((3, 8, 8, 1), np.uint8)
    assert jdml.models.create("linear", dim=4).dim == 4
    assert "linear" in str(jdml.models.create.__doc__)
    assert "linear: a dense layer." in shown_help("train")
    assert trained("--dim", 4)["network"] == "linear"
    assert jdml.training.load("run").embed(images).shape == (3, 4)
    wrong = shown("train", "--model", "linear", "--pooling", "max", code=2)
    assert "--pooling is not for --model linear" in wrong


def check_data_set() -> None:
    places = np.arange(96) % 4
    images = np.zeros((96, 8, 8, 1), np.uint8)
    images[range(96), :, 2 * places] = 255
    np.savez("bars.npz", images=images, places=places, tests=np.arange(96) < 32)
    assert len(jdml.data.load("bars", data_dir=".", split="test")) == 32
    assert "`bars.npz`" in str(jdml.data.load.__doc__)
    assert "place or side (bars)" in shown_help("train")
    assert "the lists are whole" in shown("data", "check", "bars", ".")
    trained("--data-dir", ".", "--labels", "side")
    config = json.loads(Path("run/config.json").read_text())
    assert (config["data"], config["labels"]) == ("bars", "side")
    shown("embed", "run", "bars:.", "--split", "test", "--quiet", "--out", "embedded.npz")
    assert np.load("embedded.npz")["embeddings"].shape == (32, 64)


def check_option() -> None:
    from jdml.cli.sweep import Sweep

    assert "--b2" in shown_help("train")
    assert trained("--b2", 0.9)["b2"] == 0.9
    assert "--b2 0.9" in json.loads(Path("run/config.json").read_text())["started"]["command"]
    assert "--b2 must not be negative" in shown("train", "--b2", -1, code=2)
    runs = Sweep(set=("b2=0.9,0.99",), out=Path("runs")).runs().values()
    assert [run.config()["recipe"]["b2"] for run in runs] == [0.9, 0.99]


def check_method() -> None:
    method = ("--method", "shrink", "--method-setting", "factor=0.5")
    assert "shrink: A pair loss, after each evaluation" in shown_help("train")
    assert "needs --validation" in shown("train", *method, code=2)
    recipe = trained(*method, "--validation", 0.2, "--evaluate-every", 1, steps=2)
    assert recipe["method"] == {"name": "shrink", "factor": 0.5}
    log = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    assert [line["shrunk"] for line in log if "shrunk" in line] == [1, 2]
    (run,) = jdml.report.read_runs("run")
    assert run.settings["method.factor"] == 0.5


def check_command() -> None:
    assert "say what a data set is labelled by" in shown_help()
    assert "jdml classes sop" in shown_help("classes")
    assert shown("classes", "sop") == "class super_class\n"


KINDS: dict[str, tuple[Change, int, Callable[[], None]]] = {
    "loss": (LOSS, 2, check_loss),
    "miner": (MINER, 2, check_miner),
    "network": (NETWORK, 2, check_network),
    "data set": (DATA_SET, 2, check_data_set),
    "option": (OPTION, 1, check_option),
    "method": (METHOD, 2, check_method),
    "command": (COMMAND, 2, check_command),
}
"""By the kind: what is added, to how many files, and where it then is."""


def changed(text: str, lines: Lines, file: str = "") -> str:
    """A file's text with lines added, each after a line that stands there once."""
    there = text.splitlines()
    for line, more in lines.items():
        added = more.removeprefix("\n").splitlines() if line else more.splitlines()
        assert not line or there.count(line) == 1, (
            f"{file} has the line {line!r} {there.count(line)} times, expected once: "
            "mend what tests/repository/test_adding.py adds after it"
        )
        place = there.index(line) + 1 if line else len(there)
        there[place:place] = added
    return "\n".join([*there, ""])


def apply(change: Change, package: Path) -> None:
    """Add a thing to a copy of the library."""
    for name, edit in change.items():
        file = package / name
        assert file.exists() != isinstance(edit, str), f"{name} must be new, or there, as it says"
        text = edit if isinstance(edit, str) else changed(file.read_text(), edit, name)
        file.write_text(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thing_is_added_in_few_files(kind):
    change, files, _ = KINDS[kind]
    assert len(change) == files


def test_what_is_added_is_there_everywhere(tmp_path):
    """All of it in one copy: no kind reads what another adds, but all train its network, which compiles soon."""
    shutil.copytree(PACKAGE, tmp_path / "jdml", ignore=shutil.ignore_patterns("__pycache__"))
    for change, *_ in KINDS.values():
        apply(change, tmp_path / "jdml")
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(KINDS)


def test_contributing_says_how_many_files():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    told = dict(re.findall(r"^\*\*An? ([\w ]+)\*\*, (one file|two files)", text, re.M))
    words = {1: "one file", 2: "two files"}
    assert told == {kind: words[files] for kind, (_, files, _) in KINDS.items()}


def test_a_line_that_is_gone_is_told():
    assert changed("a\nb\n", {"a": "\nc\n", "": "\nd\n"}) == "a\nc\nb\n\nd\n"
    with pytest.raises(AssertionError, match=r"x\.py has the line 'c' 0 times"):
        changed("a\nb\n", {"c": "\nd\n"}, "x.py")


if __name__ == "__main__":
    assert Path.cwd() in PACKAGE.parents, f"jdml is {PACKAGE}, expected the copy here"
    for kind, (_, _, check) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            check()
        print(kind)
