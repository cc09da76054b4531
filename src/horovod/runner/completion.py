"""Completion for shells, made from the parser of the command line itself.

What is completed: horovodrun's own flags, their values (choices, files, directories), then the command
and its arguments as the shell completes them anywhere else.
"""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

# The metavar of a flag says what its value is.
_FILE, _DIRECTORY = "FILE", "DIR"


class _Flag(NamedTuple):
    names: tuple[str, ...]
    help: str
    takes_value: bool
    metavar: str
    choices: tuple[str, ...]


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The text that `shell` (bash, zsh or fish) must read to complete the parser's command line.

    Raises:
        ValueError: there is none for this shell.
    """
    flags = _flags(parser)
    if shell == "bash":
        return _bash(parser.prog, flags)
    if shell == "zsh":
        return _zsh(parser.prog, flags)
    if shell == "fish":
        return _fish(parser.prog, flags)
    raise ValueError(f"expected bash, zsh or fish, found '{shell}'")


def _flags(parser: argparse.ArgumentParser) -> list[_Flag]:
    found = []
    for action in parser._actions:
        if not action.option_strings or action.help is argparse.SUPPRESS:
            continue
        choices = tuple(str(choice) for choice in action.choices or ())
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        found.append(
            _Flag(
                tuple(action.option_strings),
                _first_sentence(str(action.help)),
                action.nargs != 0,
                metavar,
                choices,
            )
        )
    return found


def _first_sentence(text: str) -> str:
    """Enough for a line in a menu."""
    text = text.replace("%%", "%")
    return re.split(r"(?<=[.;]) |  *\((?=HOROVOD_)", text, maxsplit=1)[0].rstrip(".;")


def _function(program: str) -> str:
    return "_" + re.sub(r"\W", "_", program)


def _bash(program: str, flags: list[_Flag]) -> str:
    every = " ".join(name for flag in flags for name in flag.names)
    with_value = "|".join(name for flag in flags if flag.takes_value for name in flag.names)
    cases = []
    for flag in flags:
        words = ""
        if flag.choices:
            words = f'-W "{" ".join(flag.choices)}"'
        elif flag.metavar == _DIRECTORY:
            words = "-d"
        elif flag.metavar == _FILE:
            words = "-f"
        if flag.takes_value and words:
            reply = f'COMPREPLY=($(compgen {words} -- "$current"))'
            cases.append(f"        {'|'.join(flag.names)}) {reply}; return ;;")
    return f"""\
# Completion of {program} for bash: eval "$({program} --print-completion bash)"
{_function(program)}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" flag="" index=1
    COMPREPLY=()
    # Which flag still waits for its value? After the command nothing is ours any more.
    while ((index < COMP_CWORD)); do
        case "${{COMP_WORDS[index]}}" in
        =) ;; # bash takes --flag=value apart
        {with_value})
            flag="${{COMP_WORDS[index]}}"
            [[ "${{COMP_WORDS[index + 1]}}" == "=" ]] && ((index++))
            ((index + 1 < COMP_CWORD)) && flag=""
            ((index++)) ;;
        -*) ;;
        *)
            if declare -F _command_offset >/dev/null; then _command_offset "$index"; fi
            return ;;
        esac
        ((index++))
    done
    [[ "$current" == "=" ]] && current=""
    case "$flag" in
{chr(10).join(cases)}
        ?*) return ;;
    esac
    if [[ "$current" == -* ]]; then
        COMPREPLY=($(compgen -W "{every}" -- "$current"))
    else
        COMPREPLY=($(compgen -c -- "$current"))
    fi
}}
complete -o default -F {_function(program)} {program}
"""


def _zsh(program: str, flags: list[_Flag]) -> str:
    lines = []
    for flag in flags:
        names = flag.names
        value = ""
        if flag.takes_value:
            action = {_FILE: "_files", _DIRECTORY: "_files -/"}.get(flag.metavar, "")
            if flag.choices:
                action = f"({' '.join(flag.choices)})"
            value = f":{_zsh_text(flag.metavar)}:{action}"
        # A long name may have its value after a '='.
        for name in names:
            equals = "=" if flag.takes_value and name.startswith("--") else ""
            exclusive = f"({' '.join(names)})" if len(names) > 1 else ""
            lines.append(f"        '{exclusive}{name}{equals}[{_zsh_text(flag.help)}]{value}' \\")
    return f"""\
#compdef {program}
# Completion of {program} for zsh: eval "$({program} --print-completion zsh)" after compinit, or this
# text as a file {_function(program)} in a directory of $fpath.
{_function(program)}() {{
    _arguments \\
{chr(10).join(lines)}
        '(-)1:command:_command_names -e' \\
        '*::arguments:_normal'
}}
if [[ "${{funcstack[1]}}" == {_function(program)} ]]; then
    {_function(program)} "$@"
else
    compdef {_function(program)} {program}
fi
"""


def _zsh_text(text: str) -> str:
    """Without what _arguments or the quotes around it would take as their own."""
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def _fish(program: str, flags: list[_Flag]) -> str:
    function = f"_{_function(program)}_before_command"
    with_value = " ".join(name for flag in flags if flag.takes_value for name in flag.names)
    lines = []
    for flag in flags:
        words = [f"complete -c {program} -n {function}"]
        for name in flag.names:
            kind = "-l" if name.startswith("--") else "-s" if len(name) == 2 else "-o"
            words.append(f"{kind} {name.lstrip('-')}")
        if flag.choices:
            words.append(f"-x -a '{' '.join(flag.choices)}'")
        elif flag.takes_value:
            words.append("-r -F" if flag.metavar in (_FILE, _DIRECTORY) else "-x")
        words.append(f"-d '{_fish_text(flag.help)}'")
        lines.append(" ".join(words))
    return f"""\
# Completion of {program} for fish: {program} --print-completion fish | source
function {function}
    set -l waits 0
    for word in (commandline -opc)[2..-1]
        if test $waits = 1
            set waits 0
        else if contains -- $word {with_value}
            set waits 1
        else if not string match -q -- '-*' $word
            return 1
        end
    end
    return 0
end
complete -c {program} -n '{function}' -f -a '(__fish_complete_command)'
complete -c {program} -n 'not {function}' -F
{chr(10).join(lines)}
"""


def _fish_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
