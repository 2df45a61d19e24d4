function __complete_fgreport
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGREPORT_COMPLETE=bash_complete fgreport 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgreport -a '(__complete_fgreport)'
