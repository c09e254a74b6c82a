"""What the gate does with each kind of request, a module for each noun of the Engine API."""
