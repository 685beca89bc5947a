"""What a connection between two ranks needs before its first message: identities and addresses."""
