"""What is remembered of past tasks: generators (engrams), stored images (exemplars), and what both cost (ledger)."""
