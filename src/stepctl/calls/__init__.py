"""The order of one call over the other rooms. No printing, no torch."""
