"""Run the guard of fenced containers: a process that ends them at their deadlines, without the daemon too."""
