"""The course of a drill."""
