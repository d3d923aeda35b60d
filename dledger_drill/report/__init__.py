"""What a drill found, as a page, a document and lines."""
