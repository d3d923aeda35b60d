"""Reading: batch and streaming readers, and Arrow record batches."""
