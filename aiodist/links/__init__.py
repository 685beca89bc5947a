"""What a connection between two ranks needs before its first message: who is there, and where."""
