"""Steps of one stage by itself, as a warm-up needs them: no other stage, and no frame.

Knows an executor of a range and the form of its planes.
"""

from collections.abc import Callable, Sequence

from harness.realize.decode import Stepped
from harness.realize.schedule import PlannedStep
from harness.stages.chain import PlaneForm, RangeExecutor


class WarmSteps:
    """Steps of one stage by itself over zeros, so that its libraries have seen every shape."""

    def __init__(self, executor: RangeExecutor, form: PlaneForm, *, is_first: bool) -> None:
        self._executor = executor
        self._form = form
        self.takes_token_ids = is_first

    def open(self) -> None:
        """Empty the executor's state."""
        self._executor.reset()

    def restore(self, put_back: Callable[[], None], positions: int) -> None:
        """Put the executor's state back."""
        del positions
        put_back()

    def step(self, planned: PlannedStep, token_ids: Sequence[int] | None) -> Stepped:
        """Run one step, over zeros where another stage's plane would be; token 0 follows."""
        position, wants_logits = planned.start_position, planned.wants_logits
        if self.takes_token_ids:
            output = self._executor.step(token_ids or (), position, want_logits=wants_logits)
        else:
            rows = self._form.rows(planned.num_rows).zero_()
            output = self._executor.step_plane(rows, position, want_logits=wants_logits)
        choice = None if output.logits is None else self._executor.choose(output.logits)
        return Stepped(output=output, choice=choice, token=0)
