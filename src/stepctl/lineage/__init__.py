"""Lineages: checkpoints, manifests, the head and its rule, commits, pruning, verification."""
