function __complete_fgsub
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGSUB_COMPLETE=bash_complete fgsub 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgsub -a '(__complete_fgsub)'
