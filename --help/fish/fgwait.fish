function __complete_fgwait
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGWAIT_COMPLETE=bash_complete fgwait 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgwait -a '(__complete_fgwait)'
