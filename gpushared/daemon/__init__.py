"""Run a service: the process, its clock, its log, its small files, systemd."""
