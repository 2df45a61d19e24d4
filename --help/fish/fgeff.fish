function __complete_fgeff
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGEFF_COMPLETE=bash_complete fgeff 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgeff -a '(__complete_fgeff)'
