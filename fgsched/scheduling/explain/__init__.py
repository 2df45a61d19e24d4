"""Why a job waits, what would lift it, and when it will start: asked of the same planner."""
