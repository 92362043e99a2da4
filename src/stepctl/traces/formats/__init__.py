"""The forms a trace file can have: each module reads one, block by block, and raises for nothing that a file holds."""
