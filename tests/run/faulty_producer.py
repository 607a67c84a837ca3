"""The producer with one fault planted in its runtime: ``faulty_producer.py FAULT... -- ARGS``.

Faults are wrappers around the real code; nothing in the code under test knows of them.
"""

import ctypes
import mmap
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness.adapters.llama.load import LlamaAdapter
from harness.adapters.llama.model import LlamaExecutor
from harness.checkpoint.reader import BoundedReader
from harness.plan.layout import TensorSpec
from harness.realize import decode
from harness.realize.decode import ExecutionLoop
from harness.realize.realizer import Realizer
from harness.run import producer
from harness.run.child import run_child
from harness.state.arena import Memory

MIRROR_BYTES = 1 << 20
KEPT: list[Any] = []


def after(owner: Any, name: str, action: Any) -> None:
    """Run ``action(self, result)`` after a method; what it returns, if anything, is the result."""
    original = getattr(owner, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        changed = action(self, result)
        return result if changed is None else changed

    setattr(owner, name, wrapped)


def before(owner: Any, name: str, action: Any) -> None:
    original = getattr(owner, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        action(self)
        return original(self, *args, **kwargs)

    setattr(owner, name, wrapped)


def weights(realizer: Realizer) -> bytes:
    arena = realizer.arenas()["mat.weights.resident"]
    return ctypes.string_at(arena.address, MIRROR_BYTES)


def mirror_tensor(data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()


def mirror_private_mmap(data: bytes) -> Any:
    mapping = mmap.mmap(-1, len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.write(data)
    return mapping


def mirror_shared_mmap(data: bytes) -> Any:
    mapping = mmap.mmap(-1, len(data))
    mapping.write(data)
    return mapping


def mirror_cpp(data: bytes) -> Any:
    # Storage that C++ owns, with no Python tensor left: a saved tensor of an autograd node.
    with torch.enable_grad():
        value = torch.frombuffer(bytearray(data), dtype=torch.float32).clone().requires_grad_()
        return (value * value).grad_fn


MIRRORS = {
    "tensor": mirror_tensor,
    "numpy": lambda data: np.frombuffer(data, dtype=np.uint8).copy(),
    "bytearray": bytearray,
    "private-mmap": mirror_private_mmap,
    "shared-mmap": mirror_shared_mmap,
    "cpp": mirror_cpp,
}


def plant_mirror(kind: str) -> None:
    after(Realizer, "realize", lambda self, _: KEPT.append(MIRRORS[kind](weights(self))))


def keep_staging_tensor() -> None:
    def keep(self: LlamaAdapter) -> None:
        arena = next(a for key, a in self._arenas.items() if key.endswith(".stage"))
        KEPT.append(next(iter(arena.tensors.values())))

    before(LlamaAdapter, "release", keep)


def open_checkpoint_file() -> None:
    def late_open(self: Realizer, _: Any) -> None:
        reader = self._source._reader  # type: ignore[attr-defined]
        path = next(iter(reader._root.glob("*.safetensors")))
        KEPT.append(path.open("rb"))

    after(Realizer, "realize", late_open)


def map_checkpoint_file() -> None:
    def late_map(self: Realizer, _: Any) -> None:
        reader = self._source._reader  # type: ignore[attr-defined]
        path = next(iter(reader._root.glob("*.safetensors")))
        with path.open("rb") as file:
            KEPT.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

    after(Realizer, "realize", late_map)


def late_read() -> None:
    readers: list[BoundedReader] = []
    after(BoundedReader, "seal", lambda self, _: readers.append(self))

    def read(self: ExecutionLoop) -> None:
        for reader in readers:
            try:
                reader.read_into("model.norm.weight", memoryview(bytearray(512)))
            except Exception:
                KEPT.append(None)

    before(ExecutionLoop, "run", read)


def reread_past_the_reader() -> None:
    """Open the checkpoint by hand in the loop, and close it before anyone looks."""
    paths: list[Any] = []
    after(
        BoundedReader,
        "seal",
        lambda self, _: paths.append(next(iter(self._root.glob("*.safetensors")))),
    )
    before(ExecutionLoop, "decode", lambda self: [path.read_bytes() for path in paths])


def reload_plan() -> None:
    jobs: list[Any] = []
    original = producer.read_job

    def read_job(path: Any) -> Any:
        jobs.append(original(path))
        return jobs[-1]

    producer.read_job = read_job
    before(ExecutionLoop, "decode", lambda self: producer.load_plan(jobs[0].plan))


def dirty_state() -> None:
    """Write where no position is held yet: no output changes, the state does."""

    def write(self: Any, _: Any) -> None:
        self.declared_state()["k"][:, -1] = 3.25

    after(LlamaExecutor, "step", write)


def flip_resident_bit(when: str) -> None:
    def flip(self: Any, *_: Any) -> None:
        arena = KEPT[0]
        arena.tensors["layers.1.down"].view(torch.int32)[3, 3] ^= 1 << 20

    def remember(self: Realizer, *_: Any) -> None:
        KEPT.insert(0, self.arenas()["mat.weights.resident"])
        if when == "before":
            flip(self)

    if when == "before":
        after(Realizer, "_observe", lambda self, _: None)
        original = Realizer.realize

        def realize(self: Realizer, fill: Any) -> None:
            def filled(arenas: Any) -> None:
                fill(arenas)
                remember(self)

            original(self, filled)

        Realizer.realize = realize  # type: ignore[method-assign]
    else:
        after(Realizer, "realize", remember)
        before(ExecutionLoop, "run", flip)


def wrong_token() -> None:
    def other(self: Any, choice: Any) -> Any:
        return replace(choice, token=(choice.token + 1) % 256)

    after(LlamaExecutor, "choose", other)


def perturb_output(action: Any) -> None:
    calls = iter(range(10**6))

    def changed(self: Any, output: Any) -> Any:
        return action(output, next(calls))

    after(LlamaExecutor, "step", changed)


def drift(output: Any, call: int) -> Any:
    plane = output.plane.clone()
    # The warm-up makes 4 calls, a prefill 2, each repetition 3: only the second one drifts.
    if call > 9:
        plane.view(torch.int32)[0, 0] ^= 1
    return replace(output, plane=plane)


def planted(output: Any, value: float) -> Any:
    plane = output.plane.clone()
    plane[0, 0] = value
    return replace(output, plane=plane)


def no_restore() -> None:
    original = decode.copy_declared
    calls = iter(range(10**6))

    def copy(source: Any, target: Any) -> None:
        # The first call of each loop takes the snapshot; later ones restore it.
        if next(calls) in (0, 1, 2):
            original(source, target)

    decode.copy_declared = copy


def read_plan_in_loop() -> None:
    plans: list[Any] = []
    original = producer.watch

    def watch(plan: Any) -> Any:
        watched = original(plan)
        plans.append(watched[0])
        return watched

    producer.watch = watch
    before(LlamaExecutor, "step", lambda self: plans[0].digest)


def wrong_lineage() -> None:
    after(LlamaExecutor, "observed_authorities", lambda self, _: {"state.kv": "state.kv@epoch-9"})


RESIDENT = "mat.weights.resident"


def final_failed() -> None:
    original = LlamaAdapter.populate

    def populate(self: Any, intent: Any, source: Any) -> None:
        if intent.id == RESIDENT:
            raise RuntimeError("planted failure")
        original(self, intent, source)

    LlamaAdapter.populate = populate  # type: ignore[method-assign]


def final_other_state() -> None:
    def other(self: Any, realized: Any) -> Any:
        if realized.arena.owner == RESIDENT:
            return replace(realized, logical_state_id="state.rope")
        return None

    after(LlamaAdapter, "allocate", other)


def final_wrong_memory() -> None:
    original = LlamaAdapter.allocate

    def allocate(self: Any, intent: Any) -> Any:
        if intent.id == RESIDENT:
            intent = replace(intent, memory_resource_id="node0.ram")
        return original(self, intent)

    # The host's planned capacity would refuse a second copy, as it should.
    bound = producer.bound_memories

    def roomy(*args: Any) -> Any:
        memories = bound(*args)
        memories["node0.ram"].capacity_bytes *= 4
        return memories

    producer.bound_memories = roomy
    LlamaAdapter.allocate = allocate  # type: ignore[method-assign]


def final_with(name: str, change: Any) -> None:
    """Allocate one materialization with other tensors than planned; the warm-up's is left alone."""
    original = Memory.allocate
    calls = iter(range(10**6))

    def allocate(self: Any, owner: str, specs: Any) -> Any:
        is_real = owner == name and next(calls) > 0
        return original(self, owner, change(list(specs)) if is_real else specs)

    Memory.allocate = allocate  # type: ignore[method-assign]


def one_more(specs: list[TensorSpec]) -> list[TensorSpec]:
    return [*specs, TensorSpec(name="stray", dtype="uint8", shape=(64,))]


def renamed(specs: list[TensorSpec]) -> list[TensorSpec]:
    # The same bytes under a shape that no planned representation has.
    return [replace(spec, shape=(1, *spec.shape)) for spec in specs]


def authority_failed() -> None:
    after(LlamaExecutor, "observed_authorities", lambda self, _: {})


def authority_elsewhere() -> None:
    # The executor works on a copy of the planned state: the owner is not the one planned.
    original = LlamaAdapter.activate

    def activate(self: Any, execution: Any) -> Any:
        executor = original(self, execution)
        session = executor._session
        session._tensors = {name: tensor.clone() for name, tensor in session._tensors.items()}
        KEPT.append(session)
        executor.declared_state = lambda: session._tensors
        return executor

    LlamaAdapter.activate = activate  # type: ignore[method-assign]


def kill_at_write(number: str) -> None:
    original = os.link
    count = iter(range(1, 10**6))

    def link(*args: Any, **kwargs: Any) -> None:
        if next(count) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        original(*args, **kwargs)

    os.link = link  # type: ignore[assignment]


def kill_at_fsync(number: str) -> None:
    original = os.fsync
    count = iter(range(1, 10**6))

    def fsync(descriptor: int) -> None:
        if next(count) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        original(descriptor)

    os.fsync = fsync


def die(number: int) -> None:
    before(ExecutionLoop, "run", lambda self: os.kill(os.getpid(), number))


def crash() -> None:
    def fail(self: Any) -> None:
        raise RuntimeError("planted crash")

    before(ExecutionLoop, "run", fail)


def hang() -> None:
    before(ExecutionLoop, "run", lambda self: signal.pause())


FAULTS: dict[str, Any] = {
    **{f"mirror-{kind}": (lambda kind=kind: plant_mirror(kind)) for kind in MIRRORS},
    "keep-staging": keep_staging_tensor,
    "open-checkpoint": open_checkpoint_file,
    "map-checkpoint": map_checkpoint_file,
    "late-read": late_read,
    "reread": reread_past_the_reader,
    "reload-plan": reload_plan,
    "dirty-state": dirty_state,
    "flip-before": lambda: flip_resident_bit("before"),
    "flip-after": lambda: flip_resident_bit("after"),
    "wrong-token": wrong_token,
    "drift": lambda: perturb_output(drift),
    "nan": lambda: perturb_output(lambda output, _: planted(output, float("nan"))),
    "inf": lambda: perturb_output(lambda output, _: planted(output, float("inf"))),
    "no-restore": no_restore,
    "final-failed": final_failed,
    "final-other-state": final_other_state,
    "final-wrong-memory": final_wrong_memory,
    "final-wrong-bytes": lambda: final_with(RESIDENT, one_more),
    "final-wrong-representation": lambda: final_with(RESIDENT, renamed),
    "authority-failed": authority_failed,
    "authority-elsewhere": authority_elsewhere,
    "read-plan": read_plan_in_loop,
    "wrong-lineage": wrong_lineage,
    "segfault": lambda: die(signal.SIGSEGV),
    "sigkill": lambda: die(signal.SIGKILL),
    "crash": crash,
    "hang": hang,
}


def main() -> int:
    split = sys.argv.index("--")
    for fault in sys.argv[1:split]:
        name, _, argument = fault.partition("=")
        if argument:
            {"kill-at-write": kill_at_write, "kill-at-fsync": kill_at_fsync}[name](argument)
        else:
            FAULTS[name]()
    sys.argv = [sys.argv[0], *sys.argv[split + 1 :]]
    return producer.main()


if __name__ == "__main__":
    run_child(main)
