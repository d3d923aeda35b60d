"""What is done to a cluster, and how it is taken back."""
