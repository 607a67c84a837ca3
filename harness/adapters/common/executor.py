"""What every family's executor does alike: choose a token, and answer for the state it owns.

Knows an owned session and a kernel set; knows no family and no forward pass.
"""

from collections.abc import Mapping, Sequence

import torch

import kernels.sampling.api as sampling
from harness.errors import NotEvaluableError
from harness.realize.adapter import Choice
from harness.state.ownership import Ownership
from harness.state.session import Session
from kernels.kernel_sets import NATIVE_CPU
from kernels.native.library import MissingNativeError, library_digest


class SessionExecutor:
    """The part of :class:`harness.realize.adapter.Executor` that follows from one session."""

    def __init__(
        self, *, strategy_unit: str, kernel_set: str, dtype: torch.dtype, session: Session
    ) -> None:
        """Bind the session.

        Args:
            strategy_unit: Which execution this is, as the family names it.
            kernel_set: The set that every op is chosen from.
            dtype: Compute dtype, of the tensors in use.
            session: Owner of the mutable state.

        Raises:
            NotEvaluableError: When the set's library is not built, or of other sources.
        """
        self._strategy_unit = strategy_unit
        self._kernel_set = kernel_set
        self._dtype = dtype
        self._session = session
        try:
            self._greedy = sampling.select(kernel_set)
        except MissingNativeError as error:
            raise NotEvaluableError(
                f"kernel set {kernel_set} cannot be run here", got=str(error)
            ) from error

    @property
    def strategy_unit(self) -> str:
        """Which execution this is."""
        return self._strategy_unit

    def conditions(self) -> Mapping[str, str]:
        """Compute dtype, the kernel set of the ops and its library, and the state's capacity."""
        library = {"kernel_library": library_digest()} if self._kernel_set == NATIVE_CPU else {}
        return library | {
            "dtype": str(self._dtype).removeprefix("torch."),
            "kernel_set": self._kernel_set,
            "positions": str(self._session.capacity_positions),
        }

    def choose(self, logits: torch.Tensor) -> Choice:
        """Greedy choice from ``logits`` [V], by the kernel set's own op."""
        token, margin = self._greedy(logits)
        return Choice(token=token, margin=margin)

    def reset(self) -> None:
        """Return the mutable state to empty: zero tensors, frontier 0."""
        self._session.reset()

    def declared_state(self) -> Mapping[str, torch.Tensor]:
        """Every tensor of the mutable state, by name."""
        return self._session.tensors

    def frontier(self) -> int:
        """Number of positions that the state holds."""
        return self._session.frontier

    def restore_frontier(self, positions: int) -> None:
        """Set the frontier after the state was restored bytewise."""
        self._session.restore(positions)

    def ownership(self) -> Sequence[Ownership]:
        """What each pool of the session owns now."""
        return self._session.ownership()

    def observed_authorities(self) -> Mapping[str, str]:
        """The mutable state and the lineage that its owner holds."""
        return {self._session.logical_state_id: self._session.lineage}
