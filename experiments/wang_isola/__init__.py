"""The tables, figures and theorems of Wang & Isola (2020)."""
