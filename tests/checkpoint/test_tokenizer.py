import json
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoint.tokenizer import chatml_prompt, decode_tokens, encode_prompt
from harness.errors import CheckpointError, InvalidInputError

PLAIN = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_SYSTEM = PLAIN.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a (very) helpful model.<|im_end|>\n' }}{% endif %}",
)


def jinja(template: str, text: str) -> str:
    """What the template means, by the engine that such templates are written for."""
    environment = pytest.importorskip("jinja2").Environment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "user", "content": text}]
    result = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    return str(result)


@pytest.mark.parametrize("template", [PLAIN, WITH_SYSTEM])
@pytest.mark.parametrize("text", ["Hello?", "", "two\nlines \\n {{ 7 * 7 }} '<|im_end|>"])
def test_the_template_means_what_jinja_makes_of_it(template: str, text: str) -> None:
    for spelling in (template, template.replace("\n", "\\n"), template + "\n"):
        assert chatml_prompt(spelling, text, where="here") == jinja(spelling, text)


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ messages }}",
        PLAIN + "x",
        PLAIN.replace("user", "x").replace("im_end", "end"),
        PLAIN.replace("{% endfor %}", "{{ 1 }}{% endfor %}"),
        WITH_SYSTEM.replace("helpful", "helpful' + cycler.__init__ + '"),
        WITH_SYSTEM.replace("helpful", "helpful\\x41"),
        PLAIN.split("{% if add_generation")[0],
    ],
)
def test_other_templates_are_refused(template: str) -> None:
    with pytest.raises(CheckpointError, match="not supported") as caught:
        chatml_prompt(template, "Hello", where="here")
    assert "ChatML" in str(caught.value)


def tokenizer_json(**changes: Any) -> str:
    alphabet = ["t0", "t1", "t2", "<|im_start|>", "<|im_end|>"]
    document = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": alphabet[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in (3, 4)
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {
                "<|im_start|>": {"id": "<|im_start|>", "ids": [3], "tokens": ["<|im_start|>"]}
            },
        },
        "model": {
            "type": "WordLevel",
            "vocab": {token: index for index, token in enumerate(alphabet)},
            "unk_token": "t0",
        },
    }
    return json.dumps({**document, **changes})


def test_ids_and_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": PLAIN}))
    assert encode_prompt(tmp_path, "t2 t1", chat=False) == [3, 2, 1]
    # The template already says where special tokens go: none is added to it.
    assert encode_prompt(tmp_path, "t2", chat=True) == [3, 0, 2, 4, 3, 0]
    assert decode_tokens(tmp_path, [3, 2, 1, 4]) == "t2 t1"
    assert decode_tokens(tmp_path, [2, 500]) == "t2"  # a padded vocabulary
    with pytest.raises(InvalidInputError, match="not token ids"):
        decode_tokens(tmp_path, [-1])
    with pytest.raises(InvalidInputError, match="not valid Unicode"):
        encode_prompt(tmp_path, "\udcff", chat=False)


def test_a_template_file_goes_first(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ 1 }}"}))
    with pytest.raises(CheckpointError, match="not supported"):
        encode_prompt(tmp_path, "t2", chat=True)
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    assert encode_prompt(tmp_path, "t2", chat=True) == [3, 0, 2, 4, 3, 0]


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tokenizer"):
        encode_prompt(tmp_path, "t1", chat=False)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(CheckpointError, match="not a valid tokenizer"):
        decode_tokens(tmp_path, [1])
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    for config in (None, "{}", '{"chat_template": [{"name": "a"}]}'):
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(config)
        with pytest.raises(CheckpointError, match="no chat template"):
            encode_prompt(tmp_path, "t1", chat=True)
