"""The job on a machine, as data: job.json, events, control, result. Client and trainer share this room alone."""
