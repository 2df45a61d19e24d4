"""Keep mails on disk, and send them by a process beside the controller."""
