function __complete_fgq
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGQ_COMPLETE=bash_complete fgq 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgq -a '(__complete_fgq)'
