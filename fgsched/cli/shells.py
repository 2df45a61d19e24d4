"""The completions of the commands for bash, zsh and fish.

A completion calls its command with the variable _<COMMAND>_COMPLETE set, and click prints the words. If there
are none, the shell offers files. The build imports this module before any dependency is installed.
"""

from collections.abc import Mapping

from fgsched.domain.text import word_list

COMMANDS = word_list(
    """fgsub fgrun fgq fgcancel fginfo fgctl fgacct fgwait fgprio fgshare fgtail fgreport fgeff fgstat fgtop
    fgfence fgsched"""
)
FILES = {"bash": "NAME", "zsh": "_NAME", "fish": "NAME.fish"}  # shell -> file that the shell expects
FOLDERS = {  # shell -> directory of these files below the prefix of an installation
    "bash": "share/bash-completion/completions",
    "zsh": "share/zsh/site-functions",
    "fish": "share/fish/vendor_completions.d",
}

_BASH = """\
_NAME() {
    local line word at words=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        [[ $word == = ]] || words+=("$word")
    done
    [[ $word == = ]] && words+=("")
    at=$((${#words[@]} - 1))
    COMPREPLY=()
    while IFS= read -r line; do
        [[ $line == plain,* ]] && COMPREPLY+=("${line#plain,}")
    done < <(
        env COMP_WORDS="${words[*]}" COMP_CWORD="$at" _VARIABLE=bash_complete PROGRAM 2>/dev/null
    )
}
complete -o default -F _NAME NAME
"""
_ZSH_FUNCTION = """\
local -a lines options
local answer kind name text
answer=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1)) _VARIABLE=zsh_complete PROGRAM 2>/dev/null)
lines=("${(@f)answer}")
for kind name text in "${lines[@]}"; do
    [[ $kind == plain ]] && options+=("$name:$text")
done
if (( $#options )); then _describe option options; else _files; fi
"""
_ZSH = f"#compdef NAME\n{_ZSH_FUNCTION}"
_ZSH_NOW = f"_NAME() {{\n{_ZSH_FUNCTION}}}\ncompdef _NAME NAME\n"
_FISH = """\
function __complete_NAME
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _VARIABLE=bash_complete PROGRAM 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c NAME -a '(__complete_NAME)'
"""
_IN_FILES = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_AT_ONCE = {"bash": _BASH, "zsh": _ZSH_NOW, "fish": _FISH}


def file_text(shell: str, command: str, program: str = "") -> str:
    """Return the completion of one command, for a file in a directory of the shell.

    `program`: the command line that prints the words; by default the command, as PATH finds it.
    """
    return _filled(_IN_FILES[shell], command, program)


def all_at_once(shell: str, programs: Mapping[str, str]) -> str:
    """Return the completions of all commands, for `eval` in a shell.

    `programs`: further commands, with the command lines that print their words.
    """
    every = {**dict.fromkeys(COMMANDS, ""), **programs}
    return "".join(_filled(_AT_ONCE[shell], command, program) for command, program in every.items())


def _filled(text: str, command: str, program: str) -> str:
    text = text.replace("VARIABLE", f"{command.upper()}_COMPLETE").replace("NAME", command)
    return text.replace("PROGRAM", program or command)
