"""What runs on a remote machine beside the trainer: it starts jobs, says how they are, and moves files."""
