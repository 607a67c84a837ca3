"""``harness completion SHELL``: a script by which a shell completes commands, options and files.

Made from the grammar itself, so that it knows what the grammar knows. Nothing of the harness runs
while a shell completes.
"""

import argparse
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from harness.cli.parser import build_parser
from harness.errors import ExitCode


@dataclass(frozen=True, kw_only=True)
class _Words:
    """What may follow a command."""

    command: tuple[str, ...]
    """Without the program's name; empty for the program itself."""
    words: tuple[str, ...]
    """Its subcommands, else its options."""
    takes_overrides: bool


def completion(options: Namespace) -> int:
    """Print the script of one shell."""
    listed = list(_walk(build_parser(), ()))
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](listed), end="")
    return int(ExitCode.PASSED)


def _walk(parser: argparse.ArgumentParser, command: tuple[str, ...]) -> Iterator[_Words]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    names = [name for group in groups for name in group.choices]
    flags = [flag for action in parser._actions for flag in action.option_strings]
    yield _Words(
        command=command,
        words=tuple(names or flags),
        takes_overrides=any(action.dest == "overrides" for action in parser._actions),
    )
    for group in groups:
        for name, child in group.choices.items():
            yield from _walk(child, (*command, name))


def _cases(listed: list[_Words]) -> str:
    """By the commands typed so far, what may follow."""
    lines = []
    for each in listed:
        words = [*each.words, *(["experiment=", "plan="] if each.takes_overrides else [])]
        lines.append(f'    "{" ".join(each.command)}") words="{" ".join(words)}" ;;')
    return "\n".join(lines)


def _bash(listed: list[_Words]) -> str:
    return f"""\
# bash: source <(harness completion bash)
_harness() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" typed="" word words
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*|*=*|*/*|*.*) break ;; esac
    case " {_commands(listed)} " in *" ${{typed:+$typed/}}$word "*) ;; *) break ;; esac
    typed="${{typed:+$typed/}}$word"
  done
  case "${{typed//\\// }}" in
{_cases(listed)}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case "${{COMPREPLY[0]}}" in *=) compopt -o nospace 2>/dev/null ;; esac
}}
complete -o default -o bashdefault -F _harness harness
"""


def _zsh(listed: list[_Words]) -> str:
    return f"""\
# zsh: source <(harness completion zsh)
autoload -U +X bashcompinit && bashcompinit
{_bash(listed).partition(chr(10))[2]}"""


def _fish(listed: list[_Words]) -> str:
    lines = ["# fish: harness completion fish | source"]
    for each in listed:
        seen = [f"__fish_seen_subcommand_from {name}" for name in each.command]
        if not each.command:
            seen = ["__fish_use_subcommand"]
        condition = "; and ".join(seen)
        for word in each.words:
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            if word.startswith("-") and not word.startswith("--"):
                what = f"-s {word[1:]}"
            lines.append(f"complete -c harness -n '{condition}' {what}")
    return "\n".join(lines) + "\n"


def _commands(listed: list[_Words]) -> str:
    return " ".join("/".join(each.command) for each in listed if each.command)
