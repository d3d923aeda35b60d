"""The framed protocol of the own clients over TCP."""
