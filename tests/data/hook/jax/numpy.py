"""What is imported behind the bridge."""
