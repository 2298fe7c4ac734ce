"""What surrounds every request: errors, middleware, ranges, who is asking."""
