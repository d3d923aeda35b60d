"""What ``Admin`` does, by subject: topics, consumer groups, membership, status, retention, single messages, transactions."""
