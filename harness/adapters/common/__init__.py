"""What model families share: rows, banks, designs of states, realization. Knows no family."""
