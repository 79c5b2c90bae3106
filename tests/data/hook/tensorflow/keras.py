"""What is imported behind the context."""
