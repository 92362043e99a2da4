"""The run store: run.json, events, log, and what a process id is worth."""
