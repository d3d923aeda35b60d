"""What every client runs on: environment, tasks, and closing at exit."""
