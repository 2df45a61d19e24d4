"""How a job is launched: the launch message, the spawner, the run directory and its regions."""
