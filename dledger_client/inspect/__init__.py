"""Looking at stored messages: by id, by key, traces, dead letters, open transactions."""
