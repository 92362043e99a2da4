"""What every room stands on: errors, durable files, names. Imports none of the others."""
