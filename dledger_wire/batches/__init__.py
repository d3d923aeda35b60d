"""Batch records: the arrays and frames of many messages for one queue."""
