function __complete_fgfence
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGFENCE_COMPLETE=bash_complete fgfence 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgfence -a '(__complete_fgfence)'
