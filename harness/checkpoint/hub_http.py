"""Requests to a model hub, bounded in time and length; a token goes to the hub itself only.

Client, proxies, offline switch, endpoint and token are huggingface_hub's. Its download functions
are not used: another try begins an interrupted file anew, and a listing may have any length. Knows
nothing of checkpoints.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from harness.errors import CheckpointError, NotEvaluableError

MAX_REDIRECTS = 8
ATTEMPTS = 4
"""Requests for one thing, before a person is asked to try again."""
PAUSE_S = 1.0
"""Before the second request; doubled before each further one."""
WINDOW_S = 60.0
MIN_WINDOW_BYTES = 64 << 10
"""What must arrive within a window: silence ends earlier, by the client's own timeout."""
RANGE_REFUSED = 416
_RETRIED = frozenset({408, 425, 429})
_PORTS = {"http": 80, "https": 443}
_REVISION = re.compile(r"[0-9a-f]{40}")
_SECRETS = re.compile(r"(?<=://)[^/\s@'\"]+@|[?#][^\s'\"]*")

_Result = TypeVar("_Result")


class InterruptedTransferError(Exception):
    """A request that did not come to its end; another one may."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit of a repository."""

    repository: str
    revision: str

    def __str__(self) -> str:
        return f"repository {self.repository} at revision {self.revision}"

    @property
    def listing_url(self) -> str:
        """Where the hub lists the commit's files."""
        repository, revision = quote(self.repository), quote(self.revision, safe="")
        return f"{_endpoint()}/api/models/{repository}/revision/{revision}?blobs=true"

    def file_url(self, name: str) -> str:
        """Where the hub gives a file."""
        repository, revision = quote(self.repository), quote(self.revision, safe="")
        return f"{_endpoint()}/{repository}/resolve/{revision}/{quote(name)}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A successful answer, or a refused range, whose body has not been read."""

    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes]
    """The body as it arrives; raises :class:`InterruptedTransferError`."""


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def public(text: str) -> str:
    """Text without the credentials and the signed queries of addresses in it, cut."""
    return _SECRETS.sub("", text)[:200]


@contextmanager
def get(commit: Commit, url: str, *, what: str, byte_range: str | None = None) -> Iterator[Answer]:
    """Ask the hub for something of a commit, following redirects.

    Args:
        commit: What ``url`` belongs to.
        url: An address of the commit's.
        what: What is asked for, in messages.
        byte_range: Value of a ``Range`` header, if a part is wanted.

    Raises:
        InterruptedTransferError: When nothing, or nothing usable, came.
        CheckpointError: When the hub does not have it.
        NotEvaluableError: When the hub does not give it, or may not be asked.
    """
    headers = {"accept-encoding": "identity", "user-agent": "inference-harness"}
    if byte_range is not None:
        headers["range"] = byte_range
    if (token := _token()) is not None:
        headers["authorization"] = f"Bearer {token}"
    home, where = _origin(url), f"{what} of {commit}"
    for _ in range(MAX_REDIRECTS):
        is_home = _origin(url) == home
        if not is_home:
            headers.pop("authorization", None)
        with _opened(url, headers) as response:
            if is_home:
                _check_commit(commit, response, where)
            if not 300 <= response.status_code < 400:
                _check_status(response, where, is_home=is_home)
                yield Answer(
                    status=response.status_code,
                    headers=response.headers,
                    pieces=_pieces(response),
                )
                return
            url = _redirected(url, response, where)
    raise NotEvaluableError(
        "the hub redirects without end",
        expected=f"at most {MAX_REDIRECTS} redirects",
        where=where,
    )


def persist(attempt: Callable[[], _Result], *, problem: str, where: str, hint: str) -> _Result:
    """Repeat an attempt while it is interrupted, a bounded number of times.

    Raises:
        NotEvaluableError: Saying how the last attempt ended.
    """
    for number in range(ATTEMPTS):
        if number:
            time.sleep(PAUSE_S * 2 ** (number - 1))
        try:
            return attempt()
        except InterruptedTransferError as error:
            last = error
    raise NotEvaluableError(
        problem,
        expected="a hub that can be reached and answers",
        got=f"{last} (attempt {ATTEMPTS} of {ATTEMPTS})",
        where=where,
        hint=hint,
    ) from last


def read_body(answer: Answer, *, max_bytes: int) -> bytes:
    """The whole body of an answer.

    Raises:
        InterruptedTransferError: When it breaks off.
        CheckpointError: When it is longer than ``max_bytes``.
    """
    body = bytearray()
    for piece in answer.pieces:
        body += piece
        if len(body) > max_bytes:
            raise CheckpointError("the hub's answer is too long", expected=f"{max_bytes} bytes")
    return bytes(body)


def _token() -> str | None:
    import huggingface_hub
    from huggingface_hub import constants

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else huggingface_hub.get_token()
    if token is not None and not (token.isascii() and token.isprintable()):
        # The client would show it whole in its message.
        raise NotEvaluableError(
            "the hub's token cannot be sent",
            expected="printable ASCII",
            hint="log in again, or unset HF_TOKEN",
        )
    return token


def _origin(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError) as error:
        raise NotEvaluableError(
            "not an address of a hub", expected="http or https", got=public(url)
        ) from error


@contextmanager
def _opened(url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    with ExitStack() as stack:
        try:
            response = stack.enter_context(
                huggingface_hub.get_session().stream(
                    "GET",
                    url,
                    headers=headers,
                    follow_redirects=False,
                    timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
                )
            )
        except OfflineModeIsEnabled as error:
            raise NotEvaluableError(
                "the hub may not be asked",
                expected="a checkpoint in the cache, or a hub that may be asked",
                got="offline mode (HF_HUB_OFFLINE)",
                where=public(url),
                hint="fetch the checkpoint where the hub can be reached, or unset HF_HUB_OFFLINE",
            ) from error
        except Exception as error:
            # The client's errors have no common base that is stable between versions.
            raise InterruptedTransferError(_reason(error)) from error
        yield response


def _pieces(response: Any) -> Iterator[bytes]:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise InterruptedTransferError(f"the answer is encoded ({public(encoding)})")
    arrived, begun = 0, time.monotonic()
    try:
        # Without a size a piece is what has arrived, so that a trickle is seen.
        for piece in response.iter_raw():
            arrived += len(piece)
            now = time.monotonic()
            if now - begun > WINDOW_S:
                if arrived < MIN_WINDOW_BYTES:
                    raise TimeoutError(f"{arrived} bytes in {now - begun:.0f} s")
                arrived, begun = 0, now
            yield piece
    except Exception as error:  # as in opening: of whatever class the client raises
        raise InterruptedTransferError(_reason(error)) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {public(str(error))}".rstrip(": ")


def _redirected(url: str, response: Any, where: str) -> str:
    stated = str(response.headers.get("location", ""))
    try:
        target = urljoin(url, stated)
    except ValueError:
        target = stated
    if target == url or (url.startswith("https:") and not target.startswith("https:")):
        raise NotEvaluableError(
            "the hub's redirect is not followed",
            expected="another https address" if url.startswith("https:") else "another address",
            got=public(target),
            where=where,
        )
    return target


def _check_commit(commit: Commit, response: Any, where: str) -> None:
    served = response.headers.get("x-repo-commit", commit.revision)
    if served != commit.revision:
        raise CheckpointError(
            "the hub answers for another commit",
            expected=commit.revision,
            got=served if _REVISION.fullmatch(served) else "no commit hash",
            where=where,
        )


def _check_status(response: Any, where: str, *, is_home: bool) -> None:
    status, code = response.status_code, response.headers.get("x-error-code", "")
    if 200 <= status < 300 or status == RANGE_REFUSED:
        return
    got = f"HTTP status {status}" + (f", {code[:40]}" if code.isalnum() else "")
    # What a hub redirects to is signed for a while; the next redirect is signed anew.
    if status >= 500 or status in _RETRIED or not is_home:
        raise InterruptedTransferError(got)
    if code == "GatedRepo" or (status == 403 and not code):
        raise NotEvaluableError(
            "the repository asks for its terms to be accepted, or for a log-in",
            got=got,
            where=where,
            hint="accept them on its page and log in, or use another source",
        )
    if code == "RevisionNotFound":
        raise CheckpointError(
            "the repository does not have this revision",
            got=got,
            where=where,
            hint="check the revision; a commit that was removed cannot be fetched",
        )
    if status in (401, 404):
        raise CheckpointError(
            "the hub does not have this, or it is private",
            got=got,
            where=where,
            hint="check repository, revision and file; log in if the repository is private",
        )
    raise NotEvaluableError("the hub refuses the request", got=got, where=where)
