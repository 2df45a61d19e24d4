function __complete_fgtail
    set -l line (commandline -cp)
    set -l word (count (commandline -opc))
    env COMP_WORDS="$line" COMP_CWORD=$word _FGTAIL_COMPLETE=bash_complete fgtail 2>/dev/null |
        string replace -rf '^plain,' ''
end
complete -c fgtail -a '(__complete_fgtail)'
