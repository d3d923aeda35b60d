"""What pages show, as typed values: functions over the public client, bounded in size, that draw nothing."""
