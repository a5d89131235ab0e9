"""What every test stands on: two CPU devices, strict ranks in the numeric rooms, real data sets."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "JDML_CACHE", "off"
)  # commands leave no compiled programs in the user's cache

import jax
import pytest

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent

# Two devices on one machine, so that sharded losses are tested wherever the tests run.
jax.config.update("jax_num_cpu_devices", 2)

# In these rooms an operand of lower rank that broadcasts by accident is an error.
STRICT_ROOMS = {"ops", "losses", "mining", "memory", "metrics", "objectives"}


@pytest.fixture(autouse=True)
def strict_ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make implicit rank promotion an error in the tests of the numeric rooms."""
    room = request.path.relative_to(TESTS).parts[0] if TESTS in request.path.parents else ""
    if room.removeprefix("test_").removesuffix(".py") not in STRICT_ROOMS:
        yield
        return
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets: ``$JDML_SHARED_DATA``, else ``../shared/data`` beside the checkout."""
    folder = Path(os.environ.get("JDML_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data sets: {folder} is not a folder (set JDML_SHARED_DATA)")
    return folder
