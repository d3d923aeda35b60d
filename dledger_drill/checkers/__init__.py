"""Whether a history breaks a promise; nothing of the product is used."""
