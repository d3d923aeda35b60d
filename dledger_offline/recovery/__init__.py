"""Data folders of stopped nodes get other members: what a restore and a recovery without a majority share."""
