"""Members of a group: configuration entries, and the data folders of the members."""
