"""What every SQLite file has in common: opening, transactions, migrations, words of trouble, its thread."""
