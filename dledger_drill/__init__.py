"""The drill: a private cluster is broken on purpose, and the history of its clients is checked."""
