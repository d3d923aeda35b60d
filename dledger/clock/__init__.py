"""The clock of a replica group: agreed time, and which members' clocks are off."""
