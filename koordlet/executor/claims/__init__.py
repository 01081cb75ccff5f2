"""Claims as values: what plugins ask for, how claims combine, what is desired. Pure."""
