"""What a form is called: by the tensors that are there, and by whose they are."""

from fake_family import memories

from harness.plan.layout import TensorSpec
from harness.realize.observe import UNIDENTIFIED, identify

WIDE = (TensorSpec(name="w", dtype="float32", shape=(4, 4)),)
FLAT = (TensorSpec(name="w", dtype="float32", shape=(16,)),)
KNOWN = {
    ("state.a", "merged"): WIDE,
    ("state.a", "flat"): FLAT,
    ("state.b", "merged"): FLAT,
    ("state.b", "snapshot"): FLAT,
    ("state.c", "wide"): WIDE,
}


def called(specs: tuple[TensorSpec, ...], state_id: str, intended: str) -> str:
    arena = memories()["ram"].allocate("it", specs)
    return identify(arena, state_id, intended, KNOWN)


def test_a_form_is_one_of_the_states_own() -> None:
    assert called(WIDE, "state.a", "merged") == "merged"
    assert called(FLAT, "state.a", "merged") == "flat"
    # The same name, and other tensors: it is that of another state.
    assert called(FLAT, "state.b", "merged") == "merged"
    assert called(WIDE, "state.b", "merged") == UNIDENTIFIED
    assert called(WIDE, "state.c", "merged") == "wide"
    assert called(FLAT, "state.c", "merged") == UNIDENTIFIED
    assert called(WIDE, "state.none", "merged") == UNIDENTIFIED


def test_among_equals_the_intended_one_wins() -> None:
    assert called(FLAT, "state.b", "snapshot") == "snapshot"
    assert called(FLAT, "state.b", "another") in ("merged", "snapshot")
