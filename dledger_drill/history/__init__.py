"""What clients did and were answered: records, and the files they are kept in."""
