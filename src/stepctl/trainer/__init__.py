"""The only room that imports torch and its family; runs on the machine that trains."""
