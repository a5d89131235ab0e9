"""A recipe's parts: a field that is added is an option with its help, and in JSON."""

import dataclasses
import json
from typing import Annotated

from jdml.cli.commands import COMMANDS, Command
from jdml.cli.options import Part, Typed, empty_part
from jdml.cli.train_options import with_typed
from jdml.recipes import LossConfig, Recipe


@dataclasses.dataclass(frozen=True)
class MyLoss(LossConfig):
    """A loss with one more number."""

    extra: int = 3
    """What is added to the loss."""


@dataclasses.dataclass(frozen=True)
class MyRecipe(Recipe):
    """A recipe with this loss."""

    loss: MyLoss = MyLoss()


@dataclasses.dataclass(frozen=True)
class Show:
    """Print a recipe."""

    loss: Annotated[Typed, Part(MyLoss(), ("method",))] = empty_part()

    def execute(self) -> None:
        print(json.dumps(MyRecipe(loss=with_typed(MyLoss(), self.loss)).to_json()))


def test_field_of_a_subclass_is_an_option_with_its_help_and_in_json(jdml_command, monkeypatch):
    record = Command("show", f"{__name__}:Show", "show", "jdml show", computes=False)
    monkeypatch.setitem(COMMANDS, "show", record)  # registered, as a command of the library is
    told = " ".join(jdml_command("show", "--help").out.split())
    assert "--extra N What is added to the loss. (default: 3)" in told
    done = jdml_command("show", "--extra", 5, "--loss", "circle")
    assert (done.code, done.err) == (0, "")
    assert MyRecipe.from_json(json.loads(done.out)) == MyRecipe(loss=MyLoss("circle", extra=5))
