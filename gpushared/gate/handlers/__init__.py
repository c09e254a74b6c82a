"""Handle each kind of request at the gate, in a module for each noun of the Engine API."""
