"""stepctl trains a language model a few optimizer steps per call."""

__version__ = "0.1.0"
