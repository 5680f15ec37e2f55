"""The papers' experiments: configs, and what their results are compared with."""
