"""The intermediate representation: integer forms, domains, operations and fusions."""
