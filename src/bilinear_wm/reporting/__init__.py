"""Results files, and the tables, figures and page made of them. No torch."""
