function __complete_fgtop
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGTOP_COMPLETE=bash_complete fgtop 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgtop -a '(__complete_fgtop)'
