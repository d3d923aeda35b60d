"""Parts of one replica: proposals, read barriers, applying, and what it refuses."""
