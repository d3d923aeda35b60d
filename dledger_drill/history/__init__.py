"""What clients did and were told: records, and the files they are kept in."""
