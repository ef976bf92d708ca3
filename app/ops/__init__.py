"""What an operator sees: logs, health, metrics; and the headers every answer carries."""
