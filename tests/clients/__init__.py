"""Programs that use GPU frameworks. In a job each prints what it prints on a bare card of the job's size."""
