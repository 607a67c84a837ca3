"""What goes wrong between stages, as opposed to inside one. Knows numbers of stages only."""

from harness.errors import InvalidInputError, NotEvaluableError


class PeerError(NotEvaluableError):
    """Another stage is gone or silent, or sent what was not its turn to send."""


class HandshakeError(InvalidInputError):
    """The stages that met are not the stages of one chain; nothing was loaded."""
