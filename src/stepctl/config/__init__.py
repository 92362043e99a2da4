"""The settings: the model, its sources and their precedence, and what is generated from it."""
