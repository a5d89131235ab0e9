"""All options of ``jdml benchmark``."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from jdml import registry
from jdml.cli.options.base import ASIDE, IN_RECIPE, as_typed
from jdml.cli.options.data import Images, PaperData
from jdml.cli.options.machines import Machines
from jdml.cli.options.method import PaperMethod
from jdml.cli.options.network import PoolingName, Weights
from jdml.cli.options.optimizer import Steps
from jdml.cli.options.run import Folder
from jdml.recipes import Recipe
from jdml.recipes.papers import Protocol
from jdml.recipes.words import parse_settings
from jdml.registry.constraints import at_least

if TYPE_CHECKING:
    Backbone = str
else:
    Backbone = Literal[tuple(sorted(registry.pretrained_networks()))]


@dataclass(frozen=True)
class BenchmarkOptions(Machines, Folder, Steps, PaperMethod, Weights, Images):
    """Which method, data set, protocol and backbone; what is not the paper's."""

    dataset: PaperData = "cub"
    """Data set; folder: any folder of classes, the first half of them for training."""
    protocol: Protocol = "conventional"
    """How models are trained, chosen and scored."""
    backbone: Backbone = "resnet50"
    """The network."""
    pooling: Annotated[PoolingName | None, IN_RECIPE] = None
    """How the network pools over space. Default: the paper's."""
    seeds: Annotated[int, at_least(1), ASIDE] = 1
    """How many runs, from --seed on; the table then shows their mean and standard deviation."""
    worker_kind: Annotated[Literal["process", "thread"], ASIDE] = "thread"
    """What decodes images."""
    dry_run: bool = False
    """A few steps on made-up images of the right size and a few classes: whether the whole path works."""

    @property
    def crop_size(self) -> int:
        """Height and width of the crops."""
        return self.image_size or (224 if self.protocol == "conventional" else 227)

    def check(self) -> None:
        """Refuse options of different parts that do not go together."""
        super().check()
        if self.label_noise and (self.protocol != "conventional" or self.method == "ccp"):
            raise ValueError(
                "--label-noise is for the conventional protocol, and not for ccp: both choose by training classes"
            )

    def recipe(self) -> Recipe:
        """Say how the method is trained: its paper's recipe, changed by what was typed.

        Raises:
            ValueError: what does not go together, as typed.
        """
        base = self.of_paper(self.dataset, self.protocol, self.backbone)
        if self.pooling is not None and base.pooling is None:
            raise ValueError(f"--pooling is not for --backbone {self.backbone}, which has its own")
        changes = {**self.changes(base), **self.typed({"pooling": "pooling"})}
        changed = sorted(
            {"alpha", "delta"} & parse_settings(self.loss_setting, "--loss-setting").keys()
        )
        if base.max_proxy_norm is not None and changed:
            raise ValueError(
                f"--method-setting clip=vector cuts at the force of the preset's alpha and delta: it does not go with "
                f"--loss-setting {'= '.join(changed)}="
            )
        with as_typed():
            return replace(base, **changes)
