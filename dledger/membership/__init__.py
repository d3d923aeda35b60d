"""Members of a group: configuration entries, and the data folders that members come with."""
