function __complete_fgrun
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGRUN_COMPLETE=bash_complete fgrun 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgrun -a '(__complete_fgrun)'
