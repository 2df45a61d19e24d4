"""One job: its script, its launch, its next step, and its outcome. Never looks at other jobs."""
