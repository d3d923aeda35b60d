"""What a drill is to do: options, and rounds drawn from a seed."""
