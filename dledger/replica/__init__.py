"""One running replica and its parts: opening, wiring, proposals, reads, applying, transfers, admission of peers."""
