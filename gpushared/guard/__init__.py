"""The guard of fenced containers: a process that ends them at their deadlines, with or without the daemon."""
