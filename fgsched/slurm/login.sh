# Read by the login shell of a script ("#!/bin/bash -l") after its profiles, which set PATH without Slurm's names and fgsched's commands.
fgsched_names="${BASH_SOURCE[0]%/*}/bin"
case ":$PATH:" in
    *":$fgsched_names:"*) ;;
    *) PATH="$fgsched_names:$PATH" ;;
esac
case ":$PATH:" in
    *":${fgsched_names%/slurm/bin}/cli/bin:"*) ;;
    *) PATH="$PATH:${fgsched_names%/slurm/bin}/cli/bin" ;;
esac
unset fgsched_names BASH_ENV
