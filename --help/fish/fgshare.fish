function __complete_fgshare
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGSHARE_COMPLETE=bash_complete fgshare 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgshare -a '(__complete_fgshare)'
