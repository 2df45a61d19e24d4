function __complete_fgacct
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGACCT_COMPLETE=bash_complete fgacct 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgacct -a '(__complete_fgacct)'
