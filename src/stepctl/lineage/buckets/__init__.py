"""Where lineages live: one file per kind behind one Protocol."""
