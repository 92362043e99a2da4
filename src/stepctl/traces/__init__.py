"""Reading and judging examples. Knows formats, templates and masks; tokenizers only through ``render/``."""
