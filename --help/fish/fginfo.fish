function __complete_fginfo
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGINFO_COMPLETE=bash_complete fginfo 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fginfo -a '(__complete_fginfo)'
