"""Share the work of every SQLite file: opening, transactions, migrations, messages, its thread."""
