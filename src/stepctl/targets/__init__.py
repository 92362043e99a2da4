"""Named places to train on, and live connections to them."""
