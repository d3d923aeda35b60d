"""Names in a replica's data directory that several modules use."""

LOG_FOLDER = "commitlog"
SNAPSHOT_FOLDER = "copy"
HARD_STATE_PATH = "hardstate"
