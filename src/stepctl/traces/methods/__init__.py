"""The shapes that a row may have for each training method, one file each."""
