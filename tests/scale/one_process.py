"""One of several processes of a run, each with its own devices.

    python tests/scale/one_process.py IMAGES OUT RESULT.json [HOST:PORT PROCESSES PROCESS [DIE_AT]]

It trains CCP on image files over all devices of all processes; proxies are sharded. `DIE_AT` is the step before which
this process kills itself, or with a minus gets a signal to end. Each evaluation writes which process decoded what.
`test_processes.py` runs it.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jdml
from jdml import objectives
from jdml.ccp import AlternatingProjections
from jdml.data import ClassBatchSampler, Crops, Dataset, ImageBatches, ImageFiles
from jdml.optim import add_anchored_weights
from jdml.training import (
    AlternatingProblems,
    Devices,
    Evaluation,
    RunConfig,
    fit,
    initialize,
    uint8_to_float,
)

SIZE, CLASSES, STEPS = 8, 8, 24


class Counted(ImageFiles):
    """Image files that count how often they are decoded."""

    training = evaluation = 0

    def read(self, row: int, random: Any = None) -> np.ndarray:
        Counted.training += random is not None
        Counted.evaluation += random is None
        return super().read(row, random)


class Mortal(ImageBatches):
    """A pipeline that kills its process before a step, or signals it to end if the step is negative."""

    dies_at = 0

    def __next__(self) -> Any:
        state = self.get_state()
        if state["epoch"] * self.batches_per_epoch + state["batch"] + 1 == abs(self.dies_at):
            os.kill(os.getpid(), signal.SIGKILL if self.dies_at > 0 else signal.SIGTERM)
        return super().__next__()


class Net(nn.Module):
    @nn.compact
    def __call__(self, images: Any, *, train: bool = False) -> Any:
        x = nn.tanh(nn.Dense(8)(images.reshape(len(images), -1)))
        return 0.2 * nn.Dense(4)(x)


def main() -> None:
    images, out, result, *rest = sys.argv[1:]
    if rest:
        # Like `initialize`, but a dead process is detected sooner.
        soon = {"heartbeat_timeout_seconds": 6, "shutdown_timeout_seconds": 30}
        jax.distributed.initialize(rest[0], int(rest[1]), int(rest[2]), **soon)
        initialize(rest[0], int(rest[1]), int(rest[2]))
    files = sorted(Path(images).glob("*.png"))
    labels = np.arange(len(files)) % CLASSES
    data = Dataset("dots", Counted(files, Crops(SIZE, SIZE, (0.5, 1.0))), labels, {"class": labels})
    batches = Mortal(data, ClassBatchSampler(labels, 4, 4, seed=1), workers=1, prefetch=1)
    batches.dies_at = int(rest[3]) if len(rest) > 3 else 0
    model = Net()
    problems = AlternatingProblems(
        model,
        data,
        4,
        "R@8",
        AlternatingProjections(patience=1, run_patience=50),
        anchor_first=False,
        first="covering",  # far apart, so that rounding does not affect the next problem's selection
    )
    asked = []

    def evaluate(embed: Any) -> dict[str, float]:
        scores = jdml.evaluate_retrieval(jnp.asarray(embed(data.images)), jnp.asarray(labels))
        asked.append(scores["R@8"])
        decoded = Path(out) / f"decoded{jax.process_index()}.json"
        decoded.write_text(json.dumps([4 * len(asked), Counted.training, Counted.evaluation]))
        # If processes measure differently, the first one's scores are used.
        return {"R@8": scores["R@8"] - (jax.process_index() * len(asked) % 2)}

    outcome = fit(
        model,
        objectives.as_proxy_objective(jdml.contrastive_loss, CLASSES, 4, 2),
        optax.chain(
            add_anchored_weights(1e-2, lambda p: {role: role == "model" for role in p}),
            optax.adam(1e-2, eps=1e-3),
        ),
        data,
        batches,
        steps=STEPS,
        run=RunConfig(out, log_every=2),
        evaluation=Evaluation(evaluate, every=4, monitor="R@8"),
        callbacks=[problems],
        devices=Devices(jax.make_mesh((jax.device_count(),), ("data",)), {"proxies": P("data")}),
        preprocess=uint8_to_float,
        progress=False,
    )
    params = outcome.embedder.state.params["model"]
    found = {
        "history": outcome.history,
        "kernel": np.asarray(params["Dense_0"]["kernel"]).tolist(),
        "embeddings": outcome.embedder(data.images[:5]).tolist(),
    }
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
