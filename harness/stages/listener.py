"""Sockets and addresses of a chain's stages. Imports no torch, so that a starter can."""

import socket

from harness.errors import NotEvaluableError

LOOPBACK = "127.0.0.1"


def listen(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """Listen for the stages of a chain, at one address only; port 0 takes a free one.

    Raises:
        NotEvaluableError: When the port is in use, as by another first stage, or not to be had.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port that lately closed is free; one that somebody listens at is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise NotEvaluableError(
            "the first stage cannot listen",
            expected="an address of this machine and a port that nobody listens at",
            got=f"{host} port {port}: {getattr(error, 'strerror', None) or error}",
            where="stage 0",
            hint="end the other chain's first stage, or choose another port",
        ) from error
    return listener


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which another one is reached; nothing is sent.

    Raises:
        NotEvaluableError: When there is no way to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
        except (OSError, OverflowError) as error:
            raise NotEvaluableError(
                "there is no way to the first machine",
                expected="an address that this machine can reach",
                got=f"{host} port {port}: {getattr(error, 'strerror', None) or error}",
            ) from error
