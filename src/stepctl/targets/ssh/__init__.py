"""Machines that are reached over SSH. Imports nothing by itself: a client of SSH is slow to load."""
