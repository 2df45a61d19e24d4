function __complete_fgctl
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGCTL_COMPLETE=bash_complete fgctl 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgctl -a '(__complete_fgctl)'
