"""The targets of scripts/bench/campaign: each module runs rounds of one or several targets."""
