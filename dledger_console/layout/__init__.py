"""What pages are made of: frame, tables, questions, charts, one look."""
