"""Routes of the cluster: what nodes register with name servers, the table made of it, and the name service that answers from it."""
