"""Speed and memory, measured in one run against another form of the same computation."""
