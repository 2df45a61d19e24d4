function __complete_fgsched
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGSCHED_COMPLETE=bash_complete fgsched 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgsched -a '(__complete_fgsched)'
