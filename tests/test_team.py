import threading
from collections.abc import Iterator

import pytest

from harness.team import Team


@pytest.fixture(params=[0, 1, 3])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    before = threading.active_count()
    with Team(request.param) as made:
        # There from the start, not when something is asked.
        assert threading.active_count() == before + request.param
        yield made
    assert threading.active_count() == before


def test_answers_come_in_order(team: Team) -> None:
    # The first can only answer once the second has, where there are threads for both.
    second = threading.Event()

    def work(item: int) -> int:
        if item == 0 and team.num_threads > 1:
            assert second.wait(30)
        if item == 1:
            second.set()
        return item * item

    assert list(team.each(work, range(200))) == [item * item for item in range(200)]
    assert list(team.each(work, ())) == []


def test_a_sequence_without_end_is_begun_a_little_ahead(team: Team) -> None:
    asked = 0

    def items() -> Iterator[int]:
        nonlocal asked
        while True:
            asked += 1
            yield asked

    answers = team.each(lambda item: item, items())
    assert [next(answers) for _ in range(50)] == list(range(1, 51))
    assert asked <= 50 + 4 * team.num_threads
    answers.close()  # type: ignore[attr-defined]


def test_the_first_error_ends_it_when_nobody_works_any_more(team: Team) -> None:
    running = set()
    late = threading.Event()

    def work(item: int) -> None:
        running.add(item)
        if item == 1:
            late.set()
            raise ValueError("planted")
        if item == 2 and team.num_threads > 1:
            # Still at work when the error is known.
            late.wait(30)
            threading.Event().wait(0.05)
        running.discard(item)

    with pytest.raises(ValueError, match="planted"):
        list(team.each(work, range(100)))
    assert running == {1}


def test_an_error_is_the_answer_s(team: Team) -> None:
    failing = team.begin(int, "x")
    assert team.begin(int, "7").result() == 7
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result()


def test_a_thread_that_cannot_start_is_an_error_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, started = threading.active_count(), []
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Team(3)
    for thread in started:
        thread.join(30)
    assert threading.active_count() == before
