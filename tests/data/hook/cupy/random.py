"""What is imported behind the driver."""
