# Read by the login shell of a script ("#!/bin/bash -l") after its profiles, which set PATH without Slurm's names.
fgsched_names="${BASH_SOURCE[0]%/*}/bin"
case ":$PATH:" in
    *":$fgsched_names:"*) ;;
    *) PATH="$fgsched_names:$PATH" ;;
esac
unset fgsched_names BASH_ENV
