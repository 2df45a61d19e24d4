function __complete_fgstat
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGSTAT_COMPLETE=bash_complete fgstat 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgstat -a '(__complete_fgstat)'
