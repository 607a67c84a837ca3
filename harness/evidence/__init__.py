"""What a store holds: statements, tables, and the rules of both. Imports no torch and no plan."""
