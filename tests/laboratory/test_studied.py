from typing import Any

from harness.laboratory.studied import step_matrix


def step(phase: str, number: int, repetition: int, plane: str, logits: str | None) -> Any:
    return {
        "repetition": repetition,
        "phase": phase,
        "step": number,
        "plane_digest": plane,
        "logits_digest": logits,
    }


def test_outputs_of_steps_in_order_and_what_varies() -> None:
    def rows(last: str) -> list[Any]:
        return [
            step("prefill", 0, 0, "p", "l"),
            step("decode", 1, 0, "a", "x"),
            step("decode", 1, 1, "a", last),
        ]

    matrix = step_matrix({(0, None): rows("x"), (1, None): rows("y")})
    assert [boundary.label for boundary in matrix.boundaries] == [
        "prefill 0: plane",
        "prefill 0: logits",
        "decode 1: plane",
        "decode 1: logits",
    ]
    # The prefill ran once in each process, and stands for both of its repetitions.
    assert [len(line) for line in matrix.groups] == [4, 4, 4, 4]
    assert matrix.groups[:3] == ((0, 0, 0, 0),) * 3
    assert matrix.groups[3] == (0, 0, 0, 1)
    assert matrix.varying() == (3,)


def test_a_record_without_a_head_has_planes_only() -> None:
    matrix = step_matrix({(0, None): [step("prefill", 0, 0, "p", None)]})
    assert [boundary.name for boundary in matrix.boundaries] == ["plane"]
    assert step_matrix({}).boundaries == ()


def test_stages_follow_one_another_in_each_step() -> None:
    first, last = step("prefill", 0, 0, "p", None), step("prefill", 0, 0, "q", "l")
    matrix = step_matrix({(0, 1): [last], (0, 0): [first]})
    names = [boundary.name for boundary in matrix.boundaries]
    assert names == ["stage 0 plane", "stage 1 plane", "stage 1 logits"]
