function __complete_fgcancel
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGCANCEL_COMPLETE=bash_complete fgcancel 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgcancel -a '(__complete_fgcancel)'
