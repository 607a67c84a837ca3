import shutil
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from omegaconf.basecontainer import BaseContainer

from harness.errors import InvalidInputError
from harness.experiment import GOVERNED, compose_experiment, expand_sweep
from harness.laboratory.faults.catalogue import FAULTS

PLANS = {
    "gemma3_270m": "gemma3_270m",
    "quickstart": "quickstart",
    "quickstart_native": "quickstart_native",
    "r1_block_a_synthetic": "r1_block_a_synthetic",
    "smollm2_hub": "smollm2_hub",
    "tiny_gemma_hybrid": "tiny_gemma_hybrid",
    "tiny_gemma_three_stages": "tiny_gemma_three_stages",
    "tiny_llama": "tiny_llama",
    "tiny_llama_streaming": "tiny_llama_streaming",
    "tiny_qwen_nvfp4": "tiny_qwen_nvfp4",
}
UNPINNED = ("r1_block_a",)
"""Their plans are derived where the hub can be reached."""
"""Experiment -> the plan that it pins. Planted faults are held against what they are planted in."""


@pytest.fixture
def config_dir(repo_root: Path, tmp_path: Path) -> Path:
    """A copy of the project's configuration that a test may change."""
    return Path(shutil.copytree(repo_root / "experiments", tmp_path / "experiments"))


def refused(config_dir: Path, *overrides: str) -> str:
    with pytest.raises(InvalidInputError) as caught:
        compose_experiment(overrides, config_dir=config_dir)
    return str(caught.value)


@pytest.mark.parametrize("name", PLANS)
def test_each_experiment_composes_and_pins_its_plan(repo_root: Path, name: str) -> None:
    config = compose_experiment([f"experiment={name}"], config_dir=repo_root / "experiments")
    assert config.name == name
    assert config.plan_path == repo_root / "plans" / f"{PLANS[name]}.json"
    assert config.plan_digest is not None
    assert config.store == repo_root / "runs" / "evidence"
    assert config.cache is None
    assert config.governed_changes == ()
    config.require_frozen()


def test_every_experiment_file_is_covered_here(repo_root: Path) -> None:
    files = {path.stem for path in (repo_root / "experiments" / "experiment").glob("*.yaml")}
    assert files == {*PLANS, *UNPINNED, *FAULTS}


@pytest.mark.parametrize("name", UNPINNED)
def test_an_experiment_without_a_plan_can_only_be_derived(repo_root: Path, name: str) -> None:
    folder = repo_root / "experiments"
    said = refused(folder, f"experiment={name}")
    assert f"harness plan derive experiment={name}" in said
    config = compose_experiment([f"experiment={name}"], config_dir=folder, needs_plan=False)
    assert (config.name, config.plan_digest) == (name, None)


def test_the_tiny_models_weights_are_at_least_four_mebibytes(repo_root: Path) -> None:
    config = compose_experiment(["experiment=tiny_llama"], config_dir=repo_root / "experiments")
    model = config.model["source"]["config"]
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    kv = model["num_key_value_heads"] * model["head_dim"]
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden
    elements = 2 * model["vocab_size"] * hidden + model["num_hidden_layers"] * layer + hidden
    assert config.model["source"]["dtype"] == "float32"
    assert 4 * elements >= 4 << 20
    assert len(config.workload["prompt_token_ids"]) > config.workload["chunk_rows"]


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("workload.decode_steps=9", "workload.decode_steps: 8 -> 9"),
        ("workload.prompt_token_ids=[1,2]", "workload.prompt_token_ids: [11, "),
        ("determinism.num_threads=1", "determinism.num_threads: 2 -> 1"),
        ("realization.staging=streaming", 'realization.staging: "whole" -> "streaming"'),
        ("timeouts.audit_s=1", "timeouts.audit_s: "),
        ("device=cpu", 'device.kind: "simulated" -> "cpu"'),
        ("model=smollm2_wheel", 'model.source.kind: "synthetic" -> "wheel"'),
        ("model.source.seed=2", "model.source.seed: 1 -> 2"),
        ("checks={acceptance:[],telemetry:[]}", "checks.acceptance: absent -> []"),
        ("workload.decode_steps=8.0", "workload.decode_steps: 8 -> 8.0"),
        ("workload.chat=0", "workload.chat: false -> 0"),
        ("+workload.page_size=4", "workload.page_size: absent -> 4"),
        (
            "+workload.prefill_partition=[[0,6],[6,70]]",
            "workload.prefill_partition: absent -> [[0, 6], [6, 70]]",
        ),
        ("+model.range={end_layer:1}", "model.range.end_layer: absent -> 1"),
        (
            "+realization.eviction_policy=let-go/1",
            'realization.eviction_policy: absent -> "let-go/1"',
        ),
        (
            "+realization.representations={state.weights:whole}",
            'realization.representations.state.weights: absent -> "whole"',
        ),
    ],
)
def test_an_override_of_a_governed_value_is_refused_by_name(
    config_dir: Path, override: str, field: str
) -> None:
    config = compose_experiment(["experiment=tiny_llama", override], config_dir=config_dir)
    with pytest.raises(InvalidInputError) as caught:
        config.require_frozen()
    message = str(caught.value)
    assert field in message
    assert "harness plan derive experiment=tiny_llama" in message
    assert override.split("=")[0] in message


def test_every_changed_value_is_named(config_dir: Path) -> None:
    config = compose_experiment(
        ["experiment=tiny_llama", "workload.repetitions=1", "timeouts.fixture_s=5"],
        config_dir=config_dir,
    )
    first, second = config.governed_changes
    assert first.startswith("timeouts.fixture_s: ")
    assert first.endswith(" -> 5")
    assert second == "workload.repetitions: 4 -> 1"


def test_store_cache_and_name_are_not_governed(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = compose_experiment(["experiment=tiny_llama"], config_dir=config_dir)
    config = compose_experiment(
        ["experiment=tiny_llama", "store=elsewhere", "cache=/big/disk", "name=renamed"],
        config_dir=config_dir,
    )
    config.require_frozen()
    assert (config.name, config.store, config.cache) == (
        "renamed",
        tmp_path / "elsewhere",
        Path("/big/disk"),
    )
    assert all(getattr(plain, name) == getattr(config, name) for name in GOVERNED)
    assert (plain.plan_path, plain.plan_digest) == (config.plan_path, config.plan_digest)


def test_a_plan_named_by_path_counts_by_its_own_digest(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose_experiment(
        ["experiment=tiny_llama", "workload.repetitions=1", "plan=runs/plans/a=1,b {x}.json"],
        config_dir=config_dir,
    )
    config.require_frozen()
    assert config.plan_path == tmp_path / "runs" / "plans" / "a=1,b {x}.json"
    assert config.plan_digest is None


def test_a_plan_alone_is_enough(config_dir: Path) -> None:
    config = compose_experiment(["plan=/plans/tiny one-1a2b.json"], config_dir=config_dir)
    assert config.name == "tiny-one-1a2b"
    config.require_frozen()


def test_two_plans_are_refused(config_dir: Path) -> None:
    assert "more than once" in refused(config_dir, "plan=a.json", "plan=b.json")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), "which experiment?"),
        (("experiment=nope",), "tiny_llama_streaming"),
        (("experiment=tiny_llama", "foo=1"), "foo"),
        (("experiment=tiny_llama", "+foo=1"), "foo: unknown"),
        (("experiment=tiny_llama", "+workload.foo=1"), "workload.foo: unknown"),
        (("experiment=tiny_llama", "+model.deep={a:1}"), "model.deep: unknown"),
        (("experiment=tiny_llama", "~model"), "model: missing"),
        (("experiment=tiny_llama", "launcher.kind=slurm", "~store"), "store: missing"),
        (("experiment=tiny_llama", "launcher.kind=slurm"), "launcher.kind: must be one of basic"),
        (("experiment=tiny_llama", "determinism=null"), "determinism: must be a mapping"),
        (("experiment=tiny_llama", "store=[1]"), "store: must be text"),
        (("experiment=tiny_llama", "name=../x"), "no usable name"),
        (("experiment=tiny_llama", "plan.digest=abc"), "does not pin its plan"),
        (("experiment=tiny_llama", "plan.digest=null"), "does not pin its plan"),
        (("experiment=tiny_llama", "hydra.run.dir=x"), "Hydra's own settings"),
        (("experiment=tiny_llama", "hydra/launcher=joblib"), "Hydra's own settings"),
        (("experiment=tiny_llama", "+hydra.searchpath=[/tmp]"), "Hydra's own settings"),
        (("x=[",), "cannot compose"),
        (("experiment",), "cannot compose"),
        (("=",), "cannot compose"),
        (("",), "cannot compose"),
        (("\x00=1",), "cannot compose"),
        (("experiment=tiny_llama", "workload.decode_steps=1,2"), "is a sweep"),
        (("experiment=tiny_llama,quickstart",), "--multirun"),
    ],
)
def test_bad_overrides_are_one_clear_error(
    config_dir: Path, overrides: tuple[str, ...], expected: str
) -> None:
    assert expected in refused(config_dir, *overrides)


@pytest.mark.parametrize(
    "value",
    [
        "'${oc.env:HARNESS_TEST_SECRET}'",
        "'x${oc.env:HARNESS_TEST_SECRET}y'",
        "'${oc.env:HARNESS_TEST_SECRET,default}'",
        "'${oc.decode:${oc.env:HARNESS_TEST_SECRET}}'",
        "'${${name}:HARNESS_TEST_SECRET}'",
        "'${hydra:runtime.cwd}'",
        "'${now:%Y}'",
        "'\\${oc.env:HARNESS_TEST_SECRET}'",
        "[1,{a:'${oc.env:HARNESS_TEST_SECRET}'}]",
    ],
)
def test_no_resolver_is_ever_resolved(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HARNESS_TEST_SECRET", "quickstart")
    message = refused(config_dir, "experiment=tiny_llama", f"++model.source.extra={value}")
    assert "no resolver" in message


def test_no_environment_variable_selects_a_group(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_TEST_SECRET", "basic")
    refused(config_dir, "experiment=tiny_llama", "launcher=${oc.env:HARNESS_TEST_SECRET}")
    path = config_dir / "config.yaml"
    text = path.read_text()
    assert "launcher: basic" in text
    path.write_text(text.replace("launcher: basic", "launcher: ${oc.env:HARNESS_TEST_SECRET}"))
    refused(config_dir, "experiment=tiny_llama")


def test_a_resolver_in_a_file_is_refused(config_dir: Path) -> None:
    path = config_dir / "experiment" / "tiny_llama.yaml"
    path.write_text(path.read_text() + "\nstore: ${oc.env:HOME}/runs\n")
    assert "store: '${oc.env:HOME}/runs'" in refused(config_dir, "experiment=tiny_llama")


def test_references_to_other_fields_are_allowed(config_dir: Path) -> None:
    config = compose_experiment(
        ["experiment=tiny_llama", "store=/runs/${name}/${model.source.seed}"],
        config_dir=config_dir,
    )
    assert config.store == Path("/runs/tiny_llama/1")


@pytest.mark.parametrize(
    "override",
    [
        "+model.source.config._target_=os.system",
        "+workload={_target_:builtins.eval}",
        "++model.source.list=[{deep:[{_target_:os.system}]}]",
        "+_target_=os.system",
    ],
)
def test_a_target_is_refused_wherever_it_stands(config_dir: Path, override: str) -> None:
    assert "_target_" in refused(config_dir, "experiment=tiny_llama", override)


def test_broken_yaml_is_one_clear_error(config_dir: Path) -> None:
    (config_dir / "experiment" / "broken.yaml").write_text("name: [unclosed\n")
    assert "cannot compose" in refused(config_dir, "experiment=broken")
    (config_dir / "experiment" / "listed.yaml").write_text("- 1\n- 2\n")
    assert "experiment: unknown" in refused(config_dir, "experiment=listed")


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    assert "config.yaml" in refused(tmp_path, "experiment=tiny_llama")
    with pytest.raises(InvalidInputError, match=r"config\.yaml"):
        expand_sweep(["experiment=a,b"], config_dir=tmp_path / "absent")


def hydra_state() -> tuple[dict[object, object], dict[object, object]]:
    return dict(Singleton._instances), dict(BaseContainer._resolvers)


def test_hydra_keeps_no_trace_of_a_composition(config_dir: Path) -> None:
    before = hydra_state()
    compose_experiment(["experiment=tiny_llama"], config_dir=config_dir)
    refused(config_dir, "experiment=nope")
    expand_sweep(["experiment=tiny_llama,quickstart"], config_dir=config_dir)
    assert hydra_state() == before


def test_a_hydra_application_around_it_is_left_alone(config_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("mine: 1\n")
    with initialize_config_dir(config_dir=str(other), version_base="1.3"):
        outer = GlobalHydra.instance()
        compose_experiment(["experiment=tiny_llama"], config_dir=config_dir)
        assert GlobalHydra.instance() is outer
        assert compose("config").mine == 1


def test_nothing_is_written_while_composing(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    compose_experiment(["experiment=tiny_llama"], config_dir=config_dir)
    assert list(empty.iterdir()) == []
    assert "experiments" not in sys.modules


def test_a_sweep_is_the_product_in_order(config_dir: Path) -> None:
    jobs = expand_sweep(
        ["experiment=tiny_llama,quickstart", "workload.decode_steps=range(1,3)", "store=x"],
        config_dir=config_dir,
    )
    assert jobs == (
        ("experiment=tiny_llama", "workload.decode_steps=1", "store=x"),
        ("experiment=tiny_llama", "workload.decode_steps=2", "store=x"),
        ("experiment=quickstart", "workload.decode_steps=1", "store=x"),
        ("experiment=quickstart", "workload.decode_steps=2", "store=x"),
    )


def test_sweeps_know_choices_globs_and_plans(config_dir: Path) -> None:
    assert expand_sweep(["experiment=glob(tiny*)"], config_dir=config_dir) == (
        ("experiment=tiny_gemma_hybrid",),
        ("experiment=tiny_gemma_three_stages",),
        ("experiment=tiny_llama",),
        ("experiment=tiny_llama_streaming",),
        ("experiment=tiny_qwen_nvfp4",),
    )
    assert expand_sweep(["plan=choice(a.json,b.json)"], config_dir=config_dir) == (
        ("plan=a.json",),
        ("plan=b.json",),
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("workload.decode_steps=interval(0,1)", "discrete"),
        ("workload.decode_steps=range(0,5000)", "1 to 1000 jobs"),
        ("experiment=glob(nothing*)", "1 to 1000 jobs"),
        ("hydra.mode=a,b", "Hydra's own settings"),
        ("experiment=[", "cannot compose"),
    ],
)
def test_bad_sweeps_are_refused(config_dir: Path, override: str, expected: str) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        expand_sweep([override], config_dir=config_dir)
