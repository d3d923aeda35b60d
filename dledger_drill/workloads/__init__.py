"""What clients do meanwhile, in a process of their own."""
