"""Base models: where they are, which revision, and what identifies them. Loads no weights."""
