function __complete_fgprio
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGPRIO_COMPLETE=bash_complete fgprio 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgprio -a '(__complete_fgprio)'
