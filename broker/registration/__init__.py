"""What a node tells name servers of itself, and what it learns from them."""
