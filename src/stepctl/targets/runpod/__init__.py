"""Pods of Runpod, rented for one call over its REST API v2."""
