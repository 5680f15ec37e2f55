"""Results for the reader: tables on the terminal, figures, and HTML pages."""
