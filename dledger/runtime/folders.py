"""Names of the folders of a replica's data directory that several modules use."""

LOG_FOLDER = "commitlog"
SNAPSHOT_FOLDER = "copy"
